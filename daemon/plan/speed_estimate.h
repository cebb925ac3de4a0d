// How fast answers can come from this machine: the slower of disk and arithmetic, beside the output
// head. Arithmetic is what one token moves through memory, and the handing out of its tasks to the
// team, which is all that counts for a small model or where others have the processors. A model of
// the steady state with one request, for planning; status shows what is reached. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace glmd {

struct TokenCost {
  int64_t dense_bytes = 0;   // read from memory for each token
  int64_t head_bytes = 0;    // of these, the output head
  int64_t expert_bytes = 0;  // of one expert, on average
  int64_t experts = 0;       // used by each token, all layers together
  int64_t expert_count = 0;  // that exist
  int64_t team_tasks = 0;    // that the team shares for each token
};

// What one token takes, where the arena holds so much.
struct TokenNeeds {
  double hit_rate = 0;
  double disk_bytes = 0, memory_bytes = 0;
  double head_bytes = 0;  // of memory_bytes
  double team_tasks = 0;
};

struct MachineSpeed {
  double disk_bytes_per_s = 0;  // of whole experts
  double memory_bytes_per_s = 0;
  double team_task_s = 0;  // that a task takes beyond an even share of its work
};

struct SpeedEstimate {
  double disk_s = 0, memory_s = 0, team_s = 0;  // of a token
  double tokens_per_s = 0;                      // at work at the same time wherever they can be
  double serial_tokens_per_s = 0;               // one after the other
  std::string bound;                            // "disk", "memory" or "threads"
};

// The share of wanted experts that are in memory where the arena holds this share of all of them.
double expected_hit_rate(double arena_share);
TokenNeeds token_needs(const TokenCost& cost, int64_t arena_bytes);
// Both speeds are above 0.
SpeedEstimate estimate_speed(const TokenNeeds& needs, const MachineSpeed& speed);

}  // namespace glmd
