#include "plan/memory_plan.h"

#include <algorithm>

#include "plan/plan_table.h"
#include "platform/aligned_memory.h"

namespace glmd {
namespace {

constexpr int64_t reserve_bytes_least = int64_t{64} << 20;  // program, queues, stacks
constexpr int64_t parsed_bytes_per_text_byte = 6;           // measured: 4 for a tokeniser
constexpr int64_t sessions_default = 4;
constexpr int64_t context_least = 2048;
constexpr int64_t context_ample = 32768;
constexpr int64_t rows_ample = 512;
constexpr int64_t rows_least = 16;
// Prompts: one at a time is made into tokens, and takes up to 36 bytes for each of its own
// (measured: 35 where it is JSON with a value every two bytes); the others wait as they came.
constexpr int64_t work_bytes_per_prompt_byte = 36;
constexpr int64_t waiting_prompts = 8;  // of the longest
constexpr int64_t prompt_bytes_ample = int64_t{8} << 20;
constexpr int64_t prompt_bytes_least = int64_t{256} << 10;
constexpr int64_t prompts_share = 24;  // of what weights leave, a part in so many
constexpr int64_t passes_at_once = 2;  // a long prefill, and decode steps between its layers

int64_t scratch(const MemoryNeeds& needs, const MemoryPlan& plan, int64_t rows) {
  return passes_at_once * needs.model.scratch.bytes({.rows = rows,
                                                     .logits = std::min(rows, plan.sessions),
                                                     .threads = needs.threads,
                                                     .tokens = round_up(plan.context_tokens, 64)});
}

// As long as an eighth of what weights leave allows, where nobody asked for a length.
int64_t choose_context(const MemoryNeeds& needs, int64_t sessions, int64_t free_bytes) {
  const int64_t most = std::min(needs.model.context_max, context_ample);
  if (needs.model.kv_bytes_per_token == 0) return most;
  const int64_t affordable = free_bytes / 8 / (needs.model.kv_bytes_per_token * sessions);
  return std::clamp(affordable / 64 * 64, std::min(context_least, most), most);
}

int64_t choose_rows(const MemoryNeeds& needs, const MemoryPlan& plan, int64_t free_bytes) {
  int64_t rows = rows_ample;
  while (rows > rows_least && scratch(needs, plan, rows) > free_bytes / 8) rows /= 2;
  return rows;
}

void plan_prompts(MemoryPlan& plan) {
  constexpr int64_t bytes_per_prompt_byte = work_bytes_per_prompt_byte + waiting_prompts;
  plan.prompt_bytes_max =
      std::clamp((plan.budget_bytes - plan.dense_bytes) / prompts_share / bytes_per_prompt_byte,
                 prompt_bytes_least, prompt_bytes_ample);
  plan.waiting_prompts_bytes_max = waiting_prompts * plan.prompt_bytes_max;
  plan.prompts_bytes = bytes_per_prompt_byte * plan.prompt_bytes_max;
}

// With the smallest expert arena, whether or not it fits.
Result<MemoryPlan> plan_least(const MemoryNeeds& needs) {
  CHECK(!needs.limits.empty());
  const auto least = std::min_element(
      needs.limits.begin(), needs.limits.end(),
      [](const MemoryLimit& a, const MemoryLimit& b) { return a.bytes < b.bytes; });
  MemoryPlan plan;
  plan.budget_bytes = least->bytes;
  plan.budget_source = least->name;
  if (needs.asked_bytes && *needs.asked_bytes > plan.budget_bytes) {
    plan.missed_bytes = needs.asked_bytes;
  }
  plan.dense_bytes = needs.model.dense_bytes;
  plan.reserve_bytes = reserve_bytes_least + parsed_bytes_per_text_byte * needs.text_bytes;
  plan.experts_bytes = needs.model.experts_bytes;
  plan.sessions = needs.sessions.value_or(sessions_default);
  if (needs.has_clients) plan_prompts(plan);

  const int64_t free_bytes =
      std::max<int64_t>(0, plan.budget_bytes - plan.total_bytes() - needs.model.arena_bytes_min);
  if (needs.context_tokens && *needs.context_tokens > needs.model.context_max) {
    return error(ErrorKind::config, "context: the model was made for at most {} tokens, got {}",
                 needs.model.context_max, *needs.context_tokens);
  }
  plan.context_tokens =
      needs.context_tokens.value_or(choose_context(needs, plan.sessions, free_bytes));
  plan.rows_max = choose_rows(needs, plan, free_bytes);
  plan.scratch_bytes = scratch(needs, plan, plan.rows_max);
  plan.kv_bytes =
      needs.model.kv_bytes_per_token * round_up(plan.context_tokens, 64) * plan.sessions;

  plan.arena_bytes = plan.arena_bytes_min = needs.model.arena_bytes_min;
  return plan;
}

}  // namespace

std::string MemoryPlan::to_text() const {
  return memory_table(to_json());
}

Json MemoryPlan::to_json() const {
  Json json = Json::object({{"budget_bytes", Json::integer(budget_bytes)},
                            {"budget_source", Json::string(budget_source)},
                            {"dense_bytes", Json::integer(dense_bytes)},
                            {"kv_bytes", Json::integer(kv_bytes)},
                            {"scratch_bytes", Json::integer(scratch_bytes)},
                            {"prompts_bytes", Json::integer(prompts_bytes)},
                            {"reserve_bytes", Json::integer(reserve_bytes)},
                            {"arena_bytes", Json::integer(arena_bytes)},
                            {"arena_bytes_min", Json::integer(arena_bytes_min)},
                            {"experts_bytes", Json::integer(experts_bytes)},
                            {"total_bytes", Json::integer(total_bytes())},
                            {"floor_bytes", Json::integer(floor_bytes)},
                            {"context_tokens", Json::integer(context_tokens)},
                            {"sessions", Json::integer(sessions)},
                            {"rows_max", Json::integer(rows_max)},
                            {"prompt_bytes_max", Json::integer(prompt_bytes_max)}});
  if (missed_bytes) json.set("missed_bytes", Json::integer(*missed_bytes));
  return json;
}

// Terms that grow with the budget, as prompts do, move the floor until it carries itself.
Result<MemoryPlan> plan_floor(const MemoryNeeds& needs) {
  MemoryPlan plan = TRY(plan_least(needs));
  MemoryNeeds least = needs;
  least.limits = {{"floor", 0}};
  while (true) {
    const int64_t wanted_bytes = TRY(plan_least(least)).total_bytes();
    if (wanted_bytes <= least.limits.front().bytes) break;
    least.limits.front().bytes = wanted_bytes;
  }
  plan.floor_bytes = least.limits.front().bytes;
  return plan;
}

std::string below_floor(const MemoryPlan& floor) {
  return fmt::format("memory: wanted at least {} bytes, got {}", floor.floor_bytes,
                     floor.budget_bytes);
}

Result<MemoryPlan> plan_memory(const MemoryNeeds& needs) {
  MemoryPlan plan = TRY(plan_floor(needs));
  if (plan.total_bytes() > plan.budget_bytes) {
    return error(ErrorKind::no_memory,
                 "{}; the sum with the smallest expert arena is\n{}remedy: {}", below_floor(plan),
                 plan.to_text(), floor_remedy);
  }
  const int64_t left_bytes = plan.budget_bytes - plan.total_bytes();
  plan.arena_bytes =
      std::max(needs.model.arena_bytes_min,
               std::min(needs.model.experts_bytes, needs.model.arena_bytes_min + left_bytes));
  return plan;
}

}  // namespace glmd
