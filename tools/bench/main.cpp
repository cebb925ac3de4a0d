// glmd-bench: how close the daemon's arithmetic comes to what the machine can do.
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "bench_kernels.h"

int main(int argc, char** argv) {
  CLI::App app("Measures the daemon's arithmetic against the limits of this machine");
  app.require_subcommand(1);
  glmd::KernelBench kernels;
  CLI::App* command =
      app.add_subcommand("kernels", "matrix kernels: GB/s, GMAC/s, ratios to read and int8 loops");
  command->add_option("--kernels", kernels.kernels, "table: auto, scalar, avx2, avx512");
  command->add_option("--formats", kernels.formats, "nl4, nl5, q8")
      ->check(CLI::IsMember({"nl4", "nl5", "q8"}))
      ->delimiter(',');
  command->add_option("--rows", kernels.rows, "rows of activations")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',');
  command->add_option("--threads", kernels.threads, "numbers of threads")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',');
  command->add_option("--repetitions", kernels.repetitions, "medians are of so many")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", kernels.as_json, "one object a line");
  CLI11_PARSE(app, argc, argv);

  if (!glmd::bench_kernels(kernels)) {
    fmt::print(stderr, "glmd-bench: this CPU has no kernel table \"{}\"\n", kernels.kernels);
    return 1;
  }
  return 0;
}
