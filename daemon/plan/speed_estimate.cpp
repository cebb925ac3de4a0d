#include "plan/speed_estimate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "experts/least_time.h"

namespace glmd {

double expected_hit_rate(double arena_share) {
  // Collected from traces of GLM-5.2 and its like, straight lines between; short of 3 % a cache
  // hardly lives from one token to the next.
  constexpr std::array<std::pair<double, double>, 10> points = {{{0, 0},
                                                                 {0.031, 0.38},
                                                                 {0.062, 0.45},
                                                                 {0.10, 0.51},
                                                                 {0.156, 0.57},
                                                                 {0.25, 0.65},
                                                                 {0.375, 0.75},
                                                                 {0.5, 0.82},
                                                                 {0.75, 0.93},
                                                                 {1, 1}}};
  const double share = std::clamp(arena_share, 0.0, 1.0);
  size_t next = 1;
  while (points[next].first < share) ++next;
  const auto& [x0, y0] = points[next - 1];
  const auto& [x1, y1] = points[next];
  return y0 + (y1 - y0) * (share - x0) / (x1 - x0);
}

TokenNeeds token_needs(const TokenCost& cost, int64_t arena_bytes) {
  const auto wanted_bytes = static_cast<double>(cost.experts * cost.expert_bytes);
  const auto all_bytes = static_cast<double>(cost.expert_count * cost.expert_bytes);
  TokenNeeds needs;
  needs.hit_rate =
      all_bytes > 0 ? expected_hit_rate(static_cast<double>(arena_bytes) / all_bytes) : 1;
  needs.disk_bytes = wanted_bytes * (1 - needs.hit_rate);
  // What the disk delivers goes through memory once more.
  needs.memory_bytes = static_cast<double>(cost.dense_bytes) + wanted_bytes + needs.disk_bytes;
  needs.head_bytes = static_cast<double>(cost.head_bytes);
  needs.team_tasks = static_cast<double>(cost.team_tasks);
  return needs;
}

SpeedEstimate estimate_speed(const TokenNeeds& needs, const MachineSpeed& speed) {
  SpeedEstimate estimate;
  estimate.disk_s = needs.disk_bytes / speed.disk_bytes_per_s;
  estimate.memory_s = needs.memory_bytes / speed.memory_bytes_per_s;
  estimate.team_s = needs.team_tasks * speed.team_task_s;
  const double arithmetic_s = estimate.memory_s + estimate.team_s;
  const double head_s = needs.head_bytes / speed.memory_bytes_per_s;
  estimate.tokens_per_s = 1 / least_time(estimate.disk_s, arithmetic_s, head_s);
  estimate.serial_tokens_per_s = 1 / (estimate.disk_s + arithmetic_s);
  estimate.bound = estimate.disk_s > arithmetic_s        ? "disk"
                   : estimate.team_s > estimate.memory_s ? "threads"
                                                         : "memory";
  return estimate;
}

}  // namespace glmd
