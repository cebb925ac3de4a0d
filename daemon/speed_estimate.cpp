#include "speed_estimate.h"

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

SpeedEstimate estimate_speed(const TokenCost& cost, int64_t arena_bytes,
                             const MachineSpeed& speed) {
  const auto wanted_bytes = static_cast<double>(cost.experts * cost.expert_bytes);
  const auto all_bytes = static_cast<double>(cost.expert_count * cost.expert_bytes);
  SpeedEstimate estimate;
  estimate.hit_rate =
      all_bytes > 0 ? expected_hit_rate(static_cast<double>(arena_bytes) / all_bytes) : 1;
  estimate.disk_bytes_per_token = wanted_bytes * (1 - estimate.hit_rate);
  // What the disk delivers goes through memory once more.
  estimate.memory_bytes_per_token =
      static_cast<double>(cost.dense_bytes) + wanted_bytes + estimate.disk_bytes_per_token;
  estimate.disk_s = estimate.disk_bytes_per_token / speed.disk_bytes_per_s;
  estimate.memory_s = estimate.memory_bytes_per_token / speed.memory_bytes_per_s;
  const double head_s = static_cast<double>(cost.head_bytes) / speed.memory_bytes_per_s;
  estimate.tokens_per_s = 1 / least_time(estimate.disk_s, estimate.memory_s, head_s);
  estimate.serial_tokens_per_s = 1 / (estimate.disk_s + estimate.memory_s);
  estimate.bound = estimate.disk_s > estimate.memory_s ? "disk" : "memory";
  return estimate;
}

}  // namespace glmd
