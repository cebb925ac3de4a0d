// glmd-inspect: looks into models and at what becomes of text, without a daemon.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "platform/result.h"
#include "tools/inspect/text_commands.h"

int main(int argc, char** argv) {
  CLI::App app("Looks into models and at what becomes of text", "glmd-inspect");
  app.set_version_flag("--version", "glmd-inspect " GLMD_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  glmd::add_text_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& failure) {
    std::fprintf(stderr, "glmd-inspect: %s\n", failure.what());
    return glmd::exit_code(glmd::ErrorKind::usage);
  }
  return exit_code;
}
