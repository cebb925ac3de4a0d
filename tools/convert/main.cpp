// glmd-convert SOURCE TARGET: a Hugging Face checkpoint folder becomes a container that glmd
// serves.
#include <fmt/format.h>
#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "tools/convert/converter.h"
#include "tools/convert/progress_line.h"

int main(int argc, char** argv) {
  using glmd::Policy;
  glmd::ConvertOptions options;
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));

  CLI::App app("Converts a Hugging Face checkpoint of GLM-5.2's family into a container for glmd.",
               "glmd-convert");
  app.set_version_flag("--version", "glmd-convert " GLMD_VERSION);
  app.add_option("SOURCE", options.source, "checkpoint folder: config.json and safetensors")
      ->required();
  app.add_option("TARGET", options.target, "folder to make; TARGET.partial until it is whole")
      ->required();
  app.add_option("--experts", options.policies.experts, "routed experts: nl4 (default), q8, exact")
      ->transform(CLI::Transformer(std::map<std::string, Policy>{
          {"nl4", Policy::nl4}, {"q8", Policy::q8}, {"exact", Policy::exact}}));
  app.add_option("--dense", options.policies.dense, "all else: nl5 (default), nl4, q8, exact")
      ->transform(CLI::Transformer(std::map<std::string, Policy>{{"nl5", Policy::nl5},
                                                                 {"nl4", Policy::nl4},
                                                                 {"q8", Policy::q8},
                                                                 {"exact", Policy::exact}}));
  app.add_option("--latent-norm-eps", options.latent_norm_eps,
                 "epsilon of the latent norms (default 1e-5)")
      ->check(CLI::Range(1e-30, 0.1));
  app.add_option("--ignore", options.ignored,
                 "leave out tensors that match (*, ?, [...]); repeatable");
  app.add_option("--threads", options.threads, "threads that encode")->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? EX_OK : EX_USAGE;
  }
  glmd::ProgressLine line("glmd-convert");
  const glmd::Result<void> result = glmd::convert(
      options, [&line](const glmd::ConvertProgress& progress) { return line.show(progress); });
  line.clear();
  if (result.ok()) return EX_OK;
  fmt::print(stderr, "glmd-convert: {}\n", result.error().message);
  return glmd::exit_code(result.error().kind);
}
