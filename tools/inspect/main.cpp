// glmd-inspect: what is in a model folder, and whether it is sound.
#include <fmt/format.h>
#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "inspect/tensor_commands.h"
#ifdef GLMD_INSPECT_HAS_TEXT
#include "inspect/text_commands.h"
#endif

int main(int argc, char** argv) {
  int exit_code = EX_OK;
  CLI::App app("Looks into model folders.", "glmd-inspect");
  app.set_version_flag("--version", "glmd-inspect " GLMD_VERSION);
  app.require_subcommand(1);
  glmd::add_tensor_commands(app, exit_code);
#ifdef GLMD_INSPECT_HAS_TEXT
  glmd::add_text_commands(app, exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? EX_OK : EX_USAGE;
  }
  if (std::fflush(stdout) != 0 && exit_code == EX_OK) {
    fmt::print(stderr, "glmd-inspect: standard output: write failed\n");
    return EX_IOERR;
  }
  return exit_code;
}
