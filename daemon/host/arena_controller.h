// How many bytes of experts to keep while the machine around us changes. Where a limit is nearly
// reached, what is missing goes at once; where an arena that is not full yet would reach it, what
// does not fit is not taken; where the kernel says that tasks wait for memory, a step goes at a
// time; after a while of calm, it comes back in small steps. Weights and conversations never go:
// the arena is never below its floor, and never above the plan. Pure: readings in, a target out.
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
  int64_t anonymous_bytes = 0;  // of the process
  int64_t expert_bytes = 0;     // of them in the arena: less than its target until it is full, more
                                // until the engine has given back what it should
  std::vector<MemoryRoom> rooms;
};

class ArenaController {
 public:
  // `other_bytes` are planned for weights, conversations and scratch, and kept for them.
  ArenaController(int64_t floor_bytes, int64_t plan_bytes, int64_t other_bytes = 0)
      : floor_bytes_(floor_bytes),
        plan_bytes_(plan_bytes),
        other_bytes_(other_bytes),
        target_bytes_(plan_bytes) {}

  // About once a second. The arena to have from now on.
  int64_t update(const MemoryReadings& readings);
  int64_t target_bytes() const { return target_bytes_; }
  const std::string& reason() const { return reason_; }  // of the last change

 private:
  void shrink(int64_t bytes, std::string reason);
  void grow(int64_t bytes);
  int64_t coming_bytes(const MemoryReadings& readings) const;
  int64_t step_bytes() const { return plan_bytes_ / 16; }

  int64_t floor_bytes_, plan_bytes_, other_bytes_, target_bytes_;
  int64_t now_ms_ = 0;
  int64_t changed_ms_ = INT64_MIN / 2;
  int64_t disturbed_ms_ = INT64_MIN / 2;
  std::string reason_;
};

}  // namespace glmd
