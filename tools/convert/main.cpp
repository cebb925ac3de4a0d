// glmd-convert SOURCE TARGET: a Hugging Face checkpoint folder becomes a container that glmd
// serves.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "tools/command_line.h"
#include "tools/convert/converter.h"
#include "tools/convert/progress_line.h"

int main(int argc, char** argv) {
  glmd::begin_program("glmd-convert");
  glmd::ConvertOptions options;
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.threads = processors;

  CLI::App app("Converts a Hugging Face checkpoint of GLM-5.2's family into a container for glmd.",
               "glmd-convert");
  app.set_version_flag("--version", "glmd-convert " GLMD_VERSION);
  app.add_option("SOURCE", options.source, "checkpoint folder: config.json and safetensors")
      ->required();
  app.add_option("TARGET", options.target, "folder to make; TARGET.partial until it is whole")
      ->required();
  std::string experts = "nl4", dense = "nl5";
  app.add_option("--experts", experts, "routed experts (default nl4)")
      ->check(CLI::IsMember({"nl4", "q8", "exact"}));
  app.add_option("--dense", dense, "all else (default nl5)")
      ->check(CLI::IsMember({"nl5", "nl4", "q8", "exact"}));
  app.add_option("--latent-norm-eps", options.latent_norm_eps,
                 "epsilon of the latent norms (default 1e-5)")
      ->transform(glmd::within(1e-30, 0.1));
  app.add_option("--ignore", options.ignored,
                 "leave out tensors that match (*, ?, [...]); repeatable");
  app.add_option("--threads", options.threads,
                 "threads that encode, at most one for each processor (default)")
      ->transform(glmd::within(1, 1024));
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  options.threads = std::min(options.threads, processors);  // more would only wait for each other
  options.policies = {.experts = *glmd::policy_from(experts), .dense = *glmd::policy_from(dense)};
  glmd::ProgressLine line("glmd-convert");
  const glmd::Result<void> result = glmd::convert(
      options, [&line](const glmd::ConvertProgress& progress) { return line.show(progress); });
  line.clear();
  return glmd::end_program(app, result);
}
