// Which resident expert makes room: a pure function of how slots were used, so that policies can be
// replayed. Uses are counted with a half-life; two decayed counts keep their order for ever, so a
// slot stores the count as it would stand at step 0, in log2 (no overflow, no sweep), and the
// smallest is the coldest.
#pragma once

#include <cstdint>
#include <span>

namespace glmd {

constexpr double use_half_life_steps = 64;

struct SlotUse {
  double heat = -1e300;  // log2 of the decayed count, projected to step 0
  int64_t last_step = -1;
  bool is_evictable = false;  // holds an expert, not pinned, not wanted by the step that runs
};

// `heat` after `uses` more uses at `step`.
double add_uses(double heat, int64_t uses, int64_t step);

// The coldest evictable slot, ties by least recent use, then lowest index; -1 where there is none.
int32_t choose_victim(std::span<const SlotUse> slots);

}  // namespace glmd
