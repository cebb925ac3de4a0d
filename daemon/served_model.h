// The folder that is served: its container, the texts beside it, and the model loaded from both.
#pragma once

#include <optional>
#include <string>

#include "experts/look_ahead.h"
#include "generation/engine_thread.h"
#include "generation/generation_defaults.h"
#include "kernels/kernel_table.h"
#include "memory_plan.h"
#include "storage/container.h"
#include "storage/reader_choice.h"

namespace glmd {

// What stands beside the tensors.
struct ModelTexts {
  std::optional<Tokenizer> tokenizer;  // without one, only ids are served
  GenerationDefaults defaults;
};
Result<ModelTexts> read_texts(const Container& container);

// A line for each thing that was opened and found sound, for `glmd --check`.
Result<std::string> check_model(const Container& container);

struct ServedModelOptions {
  const KernelTable* kernels = nullptr;
  int threads = 1;
  ReaderKind reader = ReaderKind::automatic;
  LookAhead look_ahead = LookAhead::automatic;
};

// Runs on the compute thread.
Result<LoadedModel> load_model(const Container& container, const MemoryPlan& plan,
                               const ServedModelOptions& options,
                               const EngineThread::LoadProgress& progress);

}  // namespace glmd
