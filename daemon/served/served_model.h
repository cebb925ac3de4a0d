// The folder that is served: its container, the texts beside it, and the model loaded from both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/look_ahead.h"
#include "experts/routing_observer.h"
#include "generation/engine_thread.h"
#include "generation/generation_defaults.h"
#include "kernels/kernel_table.h"
#include "kv/kv_format.h"
#include "plan/memory_plan.h"
#include "settings/settings.h"
#include "storage/container.h"
#include "storage/reader_choice.h"

namespace glmd {

// What serving it takes here, with these settings, and what there is.
Result<MemoryNeeds> memory_needs(const Container& container, const Settings& settings);
// The memory that follows; nothing is taken.
Result<MemoryPlan> plan_model(const Container& container, const Settings& settings);

// What stands beside the tensors.
struct ModelTexts {
  std::optional<Tokenizer> tokenizer;  // without one, only ids are served
  GenerationDefaults defaults;
  std::vector<std::string> doubts;  // chat_doubts(), where there is a tokenizer
};
Result<ModelTexts> read_texts(const Container& container);

// For `glmd --check`: a line for each thing that was opened and found sound, and those that are
// served although they look wrong.
struct CheckedModel {
  std::string found;
  std::vector<std::string> doubts;
};
Result<CheckedModel> check_model(const Container& container);

struct ServedModelOptions {
  const KernelTable* kernels = nullptr;
  int threads = 1;
  ReaderKind reader = ReaderKind::automatic;
  Verify verify = Verify::first_read;
  LookAhead look_ahead = LookAhead::automatic;
  KvFormat kv_format = KvFormat::f16;
  std::vector<std::string> mirrors = {};
  std::vector<RoutingObserver*> observers = {};  // outlive the model
  std::vector<float> usage_prior = {};
  std::atomic<int64_t>* experts_held_bytes = nullptr;  // kept up to date; outlives the model
};

// Runs on the compute thread.
Result<LoadedModel> load_model(const Container& container, const MemoryPlan& plan,
                               const ServedModelOptions& options,
                               const EngineThread::LoadProgress& progress);

}  // namespace glmd
