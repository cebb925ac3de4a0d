// glmd-bench: how close the daemon comes to what the machine can do.
#include "bench_attention.h"
#include "bench_encode.h"
#include "bench_kernels.h"
#include "bench_reads.h"
#include "bench_step.h"
#include "bench_stream.h"
#include "tools/command_line.h"

int main(int argc, char** argv) {
  glmd::begin_program("glmd-bench");
  CLI::App app("Measures the daemon's parts against the limits of this machine", "glmd-bench");
  app.set_version_flag("--version", "glmd-bench " GLMD_VERSION);
  app.require_subcommand(0, 1);
  const glmd::BenchCommand commands[] = {
      glmd::add_kernels_command(app),   glmd::add_step_command(app),
      glmd::add_attention_command(app), glmd::add_reads_command(app),
      glmd::add_stream_command(app),    glmd::add_encode_command(app),
  };
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  for (const glmd::BenchCommand& command : commands) {
    if (command.app->parsed()) return glmd::end_program(app, command.run());
  }
  return 0;
}
