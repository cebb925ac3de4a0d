// glmd: settings, then the plan, then two threads: this one becomes the loop, the other computes.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "memory_plan.h"
#include "memory_sources.h"
#include "memory_watch.h"
#include "model/families.h"
#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/log.h"
#include "routing_records.h"
#include "served_model.h"
#include "server/server.h"
#include "settings.h"
#include "storage/container.h"

namespace glmd {
namespace {

constexpr std::string_view embedded_model = "share/glmd/models/mini";

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

int64_t text_bytes(const Container& container) {
  int64_t bytes = 0;
  for (const char* name : {"tokenizer.json", "glmd.json"}) {
    std::error_code failure;
    const auto size = std::filesystem::file_size(container.folder() + "/" + name, failure);
    if (!failure) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

Result<MemoryPlan> plan_for(const Settings& settings, const Container& container) {
  const ModelSizes sizes = TRY(model_sizes(container, false));
  MemoryNeeds needs{.limits = cgroup_limits(),
                    .dense_bytes = sizes.dense_bytes,
                    .kv_bytes_per_token = sizes.kv_bytes_per_token,
                    .scratch_bytes_per_row = sizes.scratch_bytes_per_row,
                    .text_bytes = text_bytes(container),
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

Result<void> serve(const Settings& settings, const Container& container, const MemoryPlan& plan,
                   const KernelTable* kernels) {
  const int threads = settings.threads.value_or(physical_core_count());
  log_info("{}: identity {:016x}, {} kernels, {} threads", container.folder(), container.identity(),
           kernels->name, threads);
  log_info("memory plan\n{}", plan.to_text());

  const RoutingRecords records = TRY(RoutingRecords::open(settings, container));
  Channel channel;
  ServerOptions options;
  options.socket_path = settings.socket;
  std::unique_ptr<Server> server = TRY(Server::create(options, channel));
  const SteadyClock clock;
  const auto load = [&](const EngineThread::LoadProgress& progress) {
    return load_model(container, plan,
                      {.kernels = kernels,
                       .threads = threads,
                       .reader = settings.reader,
                       .observers = records.observers(),
                       .usage_prior = records.usage_prior()},
                      progress);
  };
  EngineThread engine(load, channel, clock);
  const MemoryWatch watch(
      ArenaController(plan.arena_bytes_min, plan.arena_bytes),
      [total_bytes = plan.total_bytes()] { return read_memory(total_bytes); }, channel);
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
      std::printf("%s%s", TRY(check_model(container)).c_str(), plan.to_text().c_str());
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
