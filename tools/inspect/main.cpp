// glmd-inspect: what is in a model folder, whether it is sound, and what becomes of text; without a
// daemon.
#include <sysexits.h>

#include <CLI/CLI.hpp>

#include "tools/command_line.h"
#include "tools/inspect/tensor_commands.h"
#include "tools/inspect/text_commands.h"

int main(int argc, char** argv) {
  glmd::begin_program("glmd-inspect");
  int exit_code = EX_OK;
  CLI::App app("Looks into models and at what becomes of text.", "glmd-inspect");
  app.set_version_flag("--version", "glmd-inspect " GLMD_VERSION);
  app.require_subcommand(0, 1);
  glmd::add_tensor_commands(app, exit_code);
  glmd::add_text_commands(app, exit_code);
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  return glmd::finish_program("glmd-inspect", exit_code);
}
