#include "served/served_model.h"

#include <malloc.h>
#include <sys/resource.h>

#include "host/memory_sources.h"
#include "host/speed_probe.h"
#include "model/families/families.h"
#include "platform/counted.h"
#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/log.h"
#include "platform/program_memory.h"
#include "storage/manifest.h"
#include "text/chat_doubts.h"
#include "text/chat_template.h"

namespace glmd {
namespace {

constexpr int64_t text_bytes_max = 1 << 20;

Result<GenerationDefaults> read_defaults(const Container& container) {
  const std::string path = container.folder() + "/generation_config.json";
  if (!path_exists(path)) return GenerationDefaults();
  const Json config = TRY(read_json_file(path, text_bytes_max));
  return TRY_CONTEXT(read_generation_defaults(config), path);
}

// A conversation is made of these; were one of them plain text, users could write it.
Result<void> check_markers(const Container& container, const Tokenizer& tokenizer) {
  for (const std::string_view marker : chat_markers()) {
    if (!tokenizer.find(marker)) {
      return error(ErrorKind::bad_input, "{}/tokenizer.json: wanted the added token {}, got none",
                   container.folder(), marker);
    }
  }
  return {};
}

Result<std::string_view> describe_template(const Container& container) {
  switch (TRY(template_origin(container.folder()))) {
    case TemplateOrigin::none:
      return std::string_view("none; glmd renders that of GLM-5.2");
    case TemplateOrigin::built_in:
      return std::string_view("that of GLM-5.2, which glmd renders");
    case TemplateOrigin::other:
      break;
  }
  return std::string_view("another than that of GLM-5.2, which glmd renders all the same");
}

// Said once; what is not locked is only as resident as the kernel likes. A limit below `bytes` is
// why, if there is one.
void warn_unlocked(std::string_view what, int64_t bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur >= static_cast<uint64_t>(bytes)) {
    log_warning(
        "{} not locked in memory: the limit allows it, a filter of system calls may not, "
        "continuing",
        what);
    return;
  }
  log_warning(
      "{} not locked in memory: the limit is {} bytes (LimitMEMLOCK= of the unit, ulimit -l), "
      "continuing",
      what, static_cast<uint64_t>(limit.rlim_cur));
}

Json facts_of(const Container& container, const MemoryPlan& plan, const ServedModelOptions& options,
              bool has_locked_weights, const Result<MachineSpeed>& speed) {
  Json memory = plan.to_json();
  memory.set("dense_is_locked", Json::boolean(has_locked_weights));
  const std::string_view kv_format =
      container.is_reference() ? "f32" : kv_format_name(options.kv_format);
  Json facts =
      Json::object({{"model", Json::string(container.folder())},
                    {"identity", Json::string(fmt::format("{:016x}", container.identity()))},
                    {"kernels", Json::string(options.kernels->name)},
                    {"kv_format", Json::string(std::string(kv_format))},
                    {"threads", Json::integer(options.threads)},
                    {"memory", std::move(memory)}});
  if (speed.ok()) {
    facts.set("measured",
              Json::object({{"memory_bytes_per_s", Json::real(speed.value().memory_bytes_per_s)},
                            {"team_task_s", Json::real(speed.value().team_task_s)}}));
  }
  return facts;
}

}  // namespace

Result<MemoryNeeds> memory_needs(const Container& container, const Settings& settings) {
  MemoryNeeds needs{.limits = cgroup_limits(),
                    .model = TRY(model_sizes(container, false, settings.kv_format)),
                    .threads = settings.threads.value_or(physical_core_count()),
                    .text_bytes = kept_text_bytes(container.folder()),
                    .has_clients = true,
                    .context_tokens = settings.context_tokens,
                    .sessions = settings.sessions,
                    .asked_bytes = settings.memory_bytes};
  Result<MemoryLimit> available = available_memory();
  if (available.ok()) {
    needs.limits.push_back(std::move(available).value());
  } else if (!settings.memory_bytes) {
    return std::move(available).error();
  }
  if (settings.memory_bytes) needs.limits.push_back({"--memory", *settings.memory_bytes});
  return needs;
}

Result<MemoryPlan> plan_model(const Container& container, const Settings& settings) {
  return plan_memory(TRY(memory_needs(container, settings)));
}

Result<ModelTexts> read_texts(const Container& container) {
  ModelTexts texts;
  if (container.has_tokenizer()) {
    texts.tokenizer = TRY(
        Tokenizer::open(container.folder() + "/tokenizer.json", container.checkpoint().vocabulary));
  }
  texts.defaults = TRY(read_defaults(container));
  if (texts.tokenizer) {
    texts.doubts =
        TRY(chat_doubts(container.folder(), container.checkpoint().stop_tokens, *texts.tokenizer));
  }
  return texts;
}

Result<CheckedModel> check_model(const Container& container) {
  ModelTexts texts = TRY(read_texts(container));
  const CheckpointConfig& config = container.checkpoint();
  std::string text = fmt::format("container: {} in {}, places and shapes sound, identity {:016x}\n",
                                 counted(container.tensors().size(), "tensor"),
                                 counted(container.files().size(), "file"), container.identity());
  text += fmt::format("config: {}, {} a layer, context {}, {}\n", counted(config.layers, "layer"),
                      counted(config.n_routed_experts, "expert"), config.max_position,
                      counted(config.stop_tokens.size(), "stop token"));
  text += fmt::format("generation config: temperature {}, top_p {}\n", texts.defaults.temperature,
                      texts.defaults.top_p);
  if (texts.tokenizer) {
    TRY(check_markers(container, *texts.tokenizer));
    text += fmt::format("tokenizer: {} ids, all markers of a conversation",
                        texts.tokenizer->vocabulary_size());
    const std::string& ignored = texts.tokenizer->ignored_settings();
    text += ignored.empty() ? "\n" : fmt::format(", {} ignored\n", ignored);
    text += fmt::format("chat template: {}\n", TRY(describe_template(container)));
  } else {
    text += "tokenizer: none; only fmt=tokens is served\n";
  }
  return CheckedModel{std::move(text), std::move(texts.doubts)};
}

Result<LoadedModel> load_model(const Container& container, const MemoryPlan& plan,
                               const ServedModelOptions& options,
                               const EngineThread::LoadProgress& progress) {
  // Before its memory is needed for anything else.
  const Result<MachineSpeed> speed = measure_team(options.threads, plan.budget_bytes);
  ModelTexts texts = TRY(read_texts(container));
  if (texts.tokenizer && !texts.tokenizer->ignored_settings().empty()) {
    log_info("{}/tokenizer.json: {} ignored", container.folder(),
             texts.tokenizer->ignored_settings());
  }
  for (const std::string& doubt : texts.doubts) log_warning("{}, continuing", doubt);
  ::malloc_trim(0);  // what parsing left behind, megabytes, belongs to the arena
  LoadedModel loaded;
  loaded.model = TRY(open_model(container, {.threads = options.threads,
                                            .kernels = options.kernels,
                                            .arena_bytes = plan.arena_bytes,
                                            .kv_pool_bytes = plan.kv_bytes,
                                            .kv_format = options.kv_format,
                                            .rows_max = plan.rows_max,
                                            .verify = options.verify,
                                            .experts_held_bytes = options.experts_held_bytes,
                                            .look_ahead = options.look_ahead,
                                            .observers = options.observers,
                                            .usage_prior = options.usage_prior,
                                            .load_progress = progress,
                                            .locks_weights = true,
                                            .reader = {.kind = options.reader},
                                            .mirrors = options.mirrors}));
  log_info("experts are read by {}", loaded.model->reader_description());
  const bool has_locked_weights = loaded.model->has_locked_weights();
  const bool has_locked_program = lock_program();
  if (!has_locked_weights) {
    warn_unlocked(fmt::format("dense weights: {} bytes are", plan.dense_bytes), plan.dense_bytes);
  } else if (!has_locked_program && !cgroup_limits().empty()) {
    warn_unlocked("program: some of its code is", INT64_MAX);
  }
  loaded.tokenizer = std::move(texts.tokenizer);
  loaded.options = {.sessions_max = plan.sessions,
                    .context_tokens = plan.context_tokens,
                    .temperature_default = texts.defaults.temperature,
                    .top_p_default = texts.defaults.top_p,
                    .stop_ids = container.checkpoint().stop_tokens,
                    .facts = facts_of(container, plan, options, has_locked_weights, speed)};
  return loaded;
}

}  // namespace glmd
