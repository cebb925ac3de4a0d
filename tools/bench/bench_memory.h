// What a bench takes of this machine, compared with what is free before any of it is taken: a
// kernel that runs out of memory ends whole programs, and not always the one that asked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_sizes.h"
#include "plan/memory_plan.h"
#include "platform/result.h"

namespace glmd {

struct MemoryTerm {
  std::string name;
  int64_t bytes = 0;
};

// What an open model takes beside its experts: dense weights, keys, passes of so many rows.
struct OpenModel {
  int64_t rows = 0, threads = 0;
  int64_t kv_pool_bytes = 0;
  int64_t tokens_max = 0;  // of a sequence
};
std::vector<MemoryTerm> terms_of(const ModelSizes& sizes, const OpenModel& model);

// Errors: no_memory, with the sum, where the terms and the program itself do not fit the least of
// the limits.
Result<void> check_memory(std::span<const MemoryTerm> terms, std::span<const MemoryLimit> limits);
// The same with the limits of this machine and of our control groups.
Result<void> check_memory(std::span<const MemoryTerm> terms);

}  // namespace glmd
