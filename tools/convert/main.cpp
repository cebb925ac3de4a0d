// glmd-convert: a Hugging Face checkpoint folder becomes a container.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>

#include "tools/convert/conversion.h"

int main(int argc, char** argv) {
  using glmd::Policy;
  glmd::ConversionOptions options;
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool is_quiet = false;

  CLI::App app("Converts a checkpoint folder to a container.", "glmd-convert");
  app.set_version_flag("--version", "glmd-convert " GLMD_VERSION);
  app.add_option("source", options.source, "checkpoint folder: config.json and safetensors files")
      ->required();
  app.add_option("target", options.target, "container folder to make")->required();
  const std::map<std::string, Policy> experts = {
      {"nl4", Policy::nl4}, {"q8", Policy::q8}, {"exact", Policy::exact}};
  const std::map<std::string, Policy> dense = {
      {"nl5", Policy::nl5}, {"nl4", Policy::nl4}, {"q8", Policy::q8}, {"exact", Policy::exact}};
  app.add_option("--experts", options.experts, "routed experts: nl4 (default), q8 or exact")
      ->transform(CLI::CheckedTransformer(experts));
  app.add_option("--dense", options.dense, "everything else: nl5 (default), nl4, q8 or exact")
      ->transform(CLI::CheckedTransformer(dense));
  app.add_option("--latent-norm-eps", options.latent_norm_eps,
                 "epsilon of the two latent norms (default 1e-5)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--ignore", options.ignored, "leave out source tensors that match this pattern");
  app.add_option("--threads", options.threads, "threads that encode")->check(CLI::Range(1, 1024));
  app.add_flag("--quiet", is_quiet, "no progress");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    return app.exit(parse_error) == 0 ? 0 : glmd::exit_code(glmd::ErrorKind::usage);
  }
  while (options.target.size() > 1 && options.target.back() == '/') options.target.pop_back();
  if (!is_quiet) {
    options.say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  }
  const glmd::Result<void> result = glmd::convert(options);
  if (!result.ok()) {
    std::fprintf(stderr, "glmd-convert: %s\n", result.error().message.c_str());
    return glmd::exit_code(result.error().kind);
  }
  return 0;
}
