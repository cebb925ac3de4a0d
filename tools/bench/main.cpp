// glmd-bench: how close the daemon comes to what the machine can do.
#include <fmt/core.h>

#include "bench_attention.h"
#include "bench_kernels.h"
#include "bench_reads.h"
#include "bench_step.h"
#include "bench_stream.h"

int main(int argc, char** argv) {
  CLI::App app("Measures the daemon's parts against the limits of this machine");
  app.set_version_flag("--version", "glmd-bench " GLMD_VERSION);
  app.require_subcommand(1);
  const glmd::BenchCommand commands[] = {
      glmd::add_kernels_command(app),   glmd::add_step_command(app),
      glmd::add_attention_command(app), glmd::add_reads_command(app),
      glmd::add_stream_command(app),
  };
  CLI11_PARSE(app, argc, argv);

  for (const glmd::BenchCommand& command : commands) {
    if (!command.app->parsed()) continue;
    const glmd::Result<void> result = command.run();
    if (!result.ok()) {
      fmt::print(stderr, "glmd-bench: {}\n", result.error().message);
      return glmd::exit_code(result.error().kind);
    }
  }
  return 0;
}
