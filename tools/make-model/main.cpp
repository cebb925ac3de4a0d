// glmd-make-model TARGET: a container with random weights of any geometry, in minutes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "platform/cpu.h"
#include "tools/command_line.h"
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
  glmd::begin_program("glmd-make-model");
  glmd::GeometryOptions geometry;
  glmd::MakeOptions options;
  options.threads = glmd::physical_core_count();
  const CLI::IsMember formats({"nl4", "nl5", "q8", "exact"});
  std::string experts_format = "nl4", dense_format = "nl5";

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
  app.add_option("--experts", geometry.experts, "routed experts a layer")
      ->transform(glmd::within(int64_t{1}, int64_t{1} << 16));
  app.add_option("--vocabulary", geometry.vocabulary, "token ids")
      ->transform(glmd::within(int64_t{1}, int64_t{1} << 24));
  app.add_option("--experts-format", experts_format, "routed experts (default nl4); exact is BF16")
      ->check(formats);
  app.add_option("--dense-format", dense_format, "all else (default nl5)")->check(formats);
  app.add_option("--seed", options.seed, "of all values (default 1)")
      ->transform(glmd::within(uint64_t{0}, UINT64_MAX));
  app.add_option("--threads", options.threads,
                 "threads that fill, at most one for each processor (default: for each core)")
      ->transform(glmd::within(1, 1024));
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.threads = std::min(options.threads, processors);  // more would only wait for each other
  options.policies = {.experts = *glmd::policy_from(experts_format),
                      .dense = *glmd::policy_from(dense_format)};
  return glmd::end_program(app, glmd::run(geometry, options));
}
