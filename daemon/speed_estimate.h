// How fast answers can come from this machine: the slower of disk and memory, each with what one
// token moves through it, beside the output head. A model of the steady state with one request, for
// planning; status shows what is reached. Pure.
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
};

struct MachineSpeed {
  double disk_bytes_per_s = 0;  // of whole experts
  double memory_bytes_per_s = 0;
};

struct SpeedEstimate {
  double hit_rate = 0;
  double disk_bytes_per_token = 0, memory_bytes_per_token = 0;
  double disk_s = 0, memory_s = 0;  // of a token
  double tokens_per_s = 0;          // at work at the same time wherever they can be
  double serial_tokens_per_s = 0;   // one after the other
  std::string bound;                // "disk" or "memory"
};

// The share of wanted experts that are in memory where the arena holds this share of all of them.
double expected_hit_rate(double arena_share);
// Both speeds are above 0.
SpeedEstimate estimate_speed(const TokenCost& cost, int64_t arena_bytes, const MachineSpeed& speed);

}  // namespace glmd
