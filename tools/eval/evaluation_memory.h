// What an evaluation may take of this machine: the arithmetic of glmd, for one sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/families/families.h"
#include "plan/memory_plan.h"
#include "storage/container.h"

namespace glmd {

struct EvaluationSize {
  int64_t context_tokens = 0;               // of the longest sequence
  int64_t rows_max = 512;                   // of a pass, at most
  std::optional<int64_t> arena_bytes = {};  // for experts; not given: as many as have room
  int64_t threads = 1;
  bool with_draft = false;
  KvFormat kv_format = KvFormat::f16;
};

// Errors: usage where the model cannot have so long a context or the arena is below the floor;
// no_memory, with the sum, where it does not fit.
Result<MemoryPlan> plan_evaluation(const Container& container, std::vector<MemoryLimit> limits,
                                   const EvaluationSize& size);

// Those of the machine and of our control groups.
Result<std::vector<MemoryLimit>> machine_limits();

}  // namespace glmd
