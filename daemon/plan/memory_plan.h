// What the daemon may take and what it takes it for: pure arithmetic, done before any memory is
// taken. Below the floor it refuses and the message is the whole sum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_sizes.h"
#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

struct MemoryLimit {
  std::string name;  // "MemAvailable x 0.88", "/sys/fs/cgroup/a/memory.max: ..."
  int64_t bytes = 0;
};

struct MemoryNeeds {
  std::vector<MemoryLimit> limits;  // at least one; the smallest is the budget
  ModelSizes model;
  int64_t threads = 1;
  int64_t text_bytes = 0;                 // tokenizer.json and glmd.json, which are kept parsed
  bool has_clients = false;               // who send prompts
  std::optional<int64_t> context_tokens;  // set by the administrator
  std::optional<int64_t> sessions;
  std::optional<int64_t> asked_bytes;  // by the administrator; one of the limits
};

struct MemoryPlan {
  int64_t budget_bytes = 0;
  std::string budget_source;
  std::optional<int64_t> missed_bytes;  // what was asked for, where the budget is less
  int64_t dense_bytes = 0, kv_bytes = 0, scratch_bytes = 0, prompts_bytes = 0, reserve_bytes = 0;
  int64_t arena_bytes = 0;
  int64_t arena_bytes_min = 0, experts_bytes = 0;
  int64_t floor_bytes = 0;  // the least budget that is not refused, with the same settings
  int64_t context_tokens = 0, sessions = 0, rows_max = 0;
  int64_t prompt_bytes_max = 0;  // of one, as it was sent
  int64_t waiting_prompts_bytes_max = 0;

  int64_t total_bytes() const {
    return dense_bytes + kv_bytes + scratch_bytes + prompts_bytes + reserve_bytes + arena_bytes;
  }
  std::string to_text() const;  // a line for every term
  Json to_json() const;
};

Result<MemoryPlan> plan_memory(const MemoryNeeds& needs);
// The same with the smallest expert arena, whether or not it fits.
Result<MemoryPlan> plan_floor(const MemoryNeeds& needs);

// Why a floor that does not fit is refused, in a line, and what helps.
std::string below_floor(const MemoryPlan& floor);
constexpr std::string_view floor_remedy = "a larger budget, fewer sessions or a shorter context";

}  // namespace glmd
