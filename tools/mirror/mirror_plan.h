// Which experts go to a disk that may not hold them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/container.h"

namespace glmd {

struct MirrorPlan {
  std::vector<const Tensor*> experts;  // of the container, which outlives this; most wanted first
  int64_t bytes = 0;
};

// Expert 0 of every layer, expert 1 of every layer, ...: where nothing is known of their use, an
// even spread over the layers is best.
std::vector<const Tensor*> even_order(const Container& container);

// Lines `LAYER EXPERT`, most used first; those it does not name follow in even order.
Result<std::vector<const Tensor*>> read_order(const std::string& path, const Container& container);

// As many as fit, in that order.
MirrorPlan plan_mirror(const std::vector<const Tensor*>& order, int64_t bytes_max);

}  // namespace glmd
