// How many bytes of experts to keep while the machine around us changes. Where a limit is nearly
// reached, what is missing goes at once; where the kernel says that tasks wait for memory, a step
// goes at a time; after a while of calm, it comes back in small steps. Weights and conversations
// never go: the arena is never below its floor, and never above the plan. Pure: readings in, a
// target out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace glmd {

// One limit: what it leaves now, and how little of that is too little.
struct MemoryRoom {
  std::string name;
  int64_t free_bytes = 0;  // negative: above the limit
  int64_t low_bytes = 0;
};

struct MemoryReadings {
  int64_t now_ms = 0;
  // Share of the last ten seconds in which some, or all, tasks waited for memory (PSI).
  double some_percent = 0, full_percent = 0;
  std::vector<MemoryRoom> rooms;
};

class ArenaController {
 public:
  ArenaController(int64_t floor_bytes, int64_t plan_bytes)
      : floor_bytes_(floor_bytes), plan_bytes_(plan_bytes), target_bytes_(plan_bytes) {}

  // About once a second. The arena to have from now on.
  int64_t update(const MemoryReadings& readings);
  int64_t target_bytes() const { return target_bytes_; }
  const std::string& reason() const { return reason_; }  // of the last change

 private:
  void shrink(int64_t bytes, std::string reason);
  void grow(int64_t bytes);
  int64_t step_bytes() const { return plan_bytes_ / 16; }

  int64_t floor_bytes_, plan_bytes_, target_bytes_;
  int64_t now_ms_ = 0;
  int64_t changed_ms_ = INT64_MIN / 2;
  int64_t disturbed_ms_ = INT64_MIN / 2;
  std::string reason_;
};

}  // namespace glmd
