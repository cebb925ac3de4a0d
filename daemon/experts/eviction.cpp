#include "experts/eviction.h"

#include <algorithm>
#include <cmath>

namespace glmd {

double add_uses(double heat, int64_t uses, int64_t step, double half_life_steps) {
  const double added =
      std::log2(static_cast<double>(uses)) + static_cast<double>(step) / half_life_steps;
  const double high = std::max(heat, added);
  return high + std::log2(1 + std::exp2(std::min(heat, added) - high));
}

int32_t choose_victim(std::span<const SlotUse> slots) {
  int32_t victim = -1;
  for (int32_t slot = 0; slot < static_cast<int32_t>(slots.size()); ++slot) {
    const SlotUse& use = slots[slot];
    if (!use.is_evictable) continue;
    if (victim >= 0) {
      const SlotUse& best = slots[victim];
      if (use.heat > best.heat) continue;
      if (use.heat == best.heat && use.last_step >= best.last_step) continue;
    }
    victim = slot;
  }
  return victim;
}

}  // namespace glmd
