// glmd-inspect: what is in a model folder, whether it is sound, and what becomes of text; without a
// daemon.
#include <fmt/format.h>
#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "platform/result.h"
#include "tools/inspect/tensor_commands.h"
#include "tools/inspect/text_commands.h"

int main(int argc, char** argv) {
  int exit_code = EX_OK;
  CLI::App app("Looks into models and at what becomes of text.", "glmd-inspect");
  app.set_version_flag("--version", "glmd-inspect " GLMD_VERSION);
  app.require_subcommand(1);
  glmd::add_tensor_commands(app, exit_code);
  glmd::add_text_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& failure) {
    fmt::print(stderr, "glmd-inspect: {}\n", failure.what());
    return EX_USAGE;
  }
  if (std::fflush(stdout) != 0 && exit_code == EX_OK) {
    fmt::print(stderr, "glmd-inspect: standard output: write failed\n");
    return EX_IOERR;
  }
  return exit_code;
}
