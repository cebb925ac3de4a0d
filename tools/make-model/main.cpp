// glmd-make-model TARGET: a container with random weights of any geometry, in minutes.
#include <fmt/format.h>
#include <sysexits.h>

#include <CLI/CLI.hpp>

#include "platform/cpu.h"
#include "tools/convert/progress_line.h"
#include "tools/make-model/geometry.h"
#include "tools/make-model/model_maker.h"

namespace glmd {
namespace {

Result<void> run(const GeometryOptions& geometry, MakeOptions options) {
  options.config = TRY(make_config(geometry));
  ProgressLine line("glmd-make-model");
  const Result<void> made =
      make_model(options, [&line](const ConvertProgress& progress) { return line.show(progress); });
  line.clear();
  return made;
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  using glmd::Policy;
  glmd::GeometryOptions geometry;
  glmd::MakeOptions options;
  options.threads = glmd::physical_core_count();
  const std::map<std::string, Policy> formats = {
      {"nl4", Policy::nl4}, {"nl5", Policy::nl5}, {"q8", Policy::q8}, {"exact", Policy::exact}};

  CLI::App app("Makes a container for glmd with random weights, for benches and tests.",
               "glmd-make-model");
  app.set_version_flag("--version", "glmd-make-model " GLMD_VERSION);
  app.add_option("TARGET", options.target, "folder to make; TARGET.partial until it is whole")
      ->required();
  CLI::App* source = app.add_option_group("geometry", "what the model looks like");
  source->add_option("--preset", geometry.preset, "glm52-slice: layers of GLM-5.2's widths")
      ->check(CLI::IsMember(glmd::preset_names()));
  source->add_option("--config", geometry.config_path, "a checkpoint's config.json");
  source->require_option(1);
  app.add_option("--layers", geometry.layers,
                 "kinds in order: dense, moe; :shared without an indexer; draft at the end")
      ->delimiter(',');
  app.add_option("--experts", geometry.experts, "routed experts a layer");
  app.add_option("--vocabulary", geometry.vocabulary, "token ids");
  app.add_option("--experts-format", options.policies.experts,
                 "routed experts: nl4 (default), nl5, q8, exact (BF16)")
      ->transform(CLI::Transformer(formats));
  app.add_option("--dense-format", options.policies.dense,
                 "all else: nl5 (default), nl4, q8, exact (BF16)")
      ->transform(CLI::Transformer(formats));
  app.add_option("--seed", options.seed, "of all values (default 1)");
  app.add_option("--threads", options.threads, "threads that fill")->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? EX_OK : EX_USAGE;
  }
  const glmd::Result<void> result = glmd::run(geometry, options);
  if (result.ok()) return EX_OK;
  fmt::print(stderr, "glmd-make-model: {}\n", result.error().message);
  return glmd::exit_code(result.error().kind);
}
