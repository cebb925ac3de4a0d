// glmd: settings, then the plan, then two threads: this one becomes the loop, the other computes.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "generation/engine_thread.h"
#include "generation/generation_defaults.h"
#include "memory_plan.h"
#include "memory_sources.h"
#include "model/families.h"
#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/log.h"
#include "server/server.h"
#include "settings.h"
#include "storage/container.h"

namespace glmd {
namespace {

constexpr std::string_view embedded_model = "share/glmd/models/mini";
constexpr int64_t generation_config_bytes_max = 1 << 20;

// bin/../share in the build tree, sbin/../share where installed.
Result<std::string> model_folder(const Settings& settings) {
  if (settings.model) return *settings.model;
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  const std::string folder =
      (program.parent_path().parent_path() / std::string(embedded_model)).string();
  if (failure || !path_exists(folder)) {
    return error(ErrorKind::config, "no --model given, and the embedded model is not at {}",
                 folder);
  }
  return folder;
}

Result<MemoryPlan> plan_for(const Settings& settings, const Container& container) {
  const ModelSizes sizes = TRY(model_sizes(container, false));
  MemoryNeeds needs{.limits = cgroup_limits(),
                    .dense_bytes = sizes.dense_bytes,
                    .kv_bytes_per_token = sizes.kv_bytes_per_token,
                    .scratch_bytes_per_row = sizes.scratch_bytes_per_row,
                    .arena_bytes_min = sizes.arena_bytes_min,
                    .experts_bytes = sizes.experts_bytes,
                    .context_max = sizes.context_max,
                    .context_tokens = settings.context_tokens,
                    .sessions = settings.sessions};
  Result<MemoryLimit> available = available_memory();
  if (available.ok()) {
    needs.limits.push_back(std::move(available).value());
  } else if (!settings.memory_bytes) {
    return std::move(available).error();
  }
  if (settings.memory_bytes) needs.limits.push_back({"--memory", *settings.memory_bytes});
  return plan_memory(needs);
}

Result<const KernelTable*> kernels_for(const Settings& settings) {
  const KernelTable* kernels = find_kernels(settings.kernels.c_str());
  if (kernels == nullptr) {
    return error(ErrorKind::config, "kernels: this processor has no table \"{}\"",
                 settings.kernels);
  }
  return kernels;
}

// Runs on the compute thread.
Result<LoadedModel> load_model(const Settings& settings, const Container& container,
                               const MemoryPlan& plan, const KernelTable* kernels, int threads) {
  LoadedModel loaded;
  loaded.model = TRY(open_model(container, {.threads = threads,
                                            .kernels = kernels,
                                            .context_tokens = plan.context_tokens,
                                            .sessions = plan.sessions,
                                            .arena_bytes = plan.arena_bytes,
                                            .kv_pool_bytes = plan.kv_bytes,
                                            .rows_max = plan.rows_max,
                                            .reader = {.kind = settings.reader},
                                            .mirrors = settings.mirrors}));
  log_info("experts are read by {}", loaded.model->reader_description());
  if (container.has_tokenizer()) {
    loaded.tokenizer = TRY(Tokenizer::open(container.folder() + "/tokenizer.json"));
  }
  GenerationDefaults defaults;
  const std::string path = container.folder() + "/generation_config.json";
  if (path_exists(path)) {
    const Json config = TRY(read_json_file(path, generation_config_bytes_max));
    defaults = TRY_CONTEXT(read_generation_defaults(config), path);
  }
  Json facts = Json::object();
  facts.set("model", Json::string(container.folder()));
  facts.set("identity", Json::string(fmt::format("{:016x}", container.identity())));
  facts.set("kernels", Json::string(kernels->name));
  facts.set("threads", Json::integer(threads));
  Json memory = Json::object();
  memory.set("budget_bytes", Json::integer(plan.budget_bytes));
  memory.set("dense_bytes", Json::integer(plan.dense_bytes));
  memory.set("kv_bytes", Json::integer(plan.kv_bytes));
  memory.set("scratch_bytes", Json::integer(plan.scratch_bytes));
  memory.set("arena_bytes", Json::integer(plan.arena_bytes));
  facts.set("memory", std::move(memory));
  loaded.options = {.sessions_max = plan.sessions,
                    .context_tokens = plan.context_tokens,
                    .temperature_default = defaults.temperature,
                    .top_p_default = defaults.top_p,
                    .stop_ids = container.checkpoint().stop_tokens,
                    .facts = std::move(facts)};
  return loaded;
}

Result<void> serve(const Settings& settings, const Container& container, const MemoryPlan& plan,
                   const KernelTable* kernels) {
  const int threads = settings.threads.value_or(physical_core_count());
  log_info("{}: identity {:016x}, {} kernels, {} threads", container.folder(), container.identity(),
           kernels->name, threads);
  log_info("memory plan\n{}", plan.to_text());

  Channel channel;
  ServerOptions options;
  options.socket_path = settings.socket;
  std::unique_ptr<Server> server = TRY(Server::create(options, channel));
  const SteadyClock clock;
  EngineThread engine([&] { return load_model(settings, container, plan, kernels, threads); },
                      channel, clock);
  Result<void> served = server->run();
  channel.send(Quit{});
  std::optional<Error> failure = engine.join();
  channel.set_wake_loop({});
  if (failure) return *failure;
  return served;
}

Result<void> run(const Settings& settings) {
  const std::string folder = TRY(model_folder(settings));
  const Container container = TRY(Container::open(folder));
  const KernelTable* kernels = TRY(kernels_for(settings));
  const MemoryPlan plan = TRY(plan_for(settings, container));
  switch (settings.action) {
    case Settings::Action::check:
      std::printf("%s: sound\n", folder.c_str());
      return {};
    case Settings::Action::plan:
    case Settings::Action::doctor:
      std::printf("%s", plan.to_text().c_str());
      return {};
    case Settings::Action::serve:
      return serve(settings, container, plan, kernels);
  }
  return {};
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  // Idle teams sleep: libgomp's default spins for a while after every loop.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  ::setenv("GOMP_SPINCOUNT", "0", 0);
  const glmd::Result<std::optional<glmd::Settings>> settings = glmd::read_settings(argc, argv);
  if (!settings.ok()) {
    std::fprintf(stderr, "glmd: %s\n", settings.error().message.c_str());
    return glmd::exit_code(settings.error().kind);
  }
  if (!settings.value()) return 0;
  glmd::set_log_level(settings.value()->log_level);
  const glmd::Result<void> result = glmd::run(*settings.value());
  if (!result.ok()) {
    glmd::log_error("{}", result.error().message);
    return glmd::exit_code(result.error().kind);
  }
  return 0;
}
