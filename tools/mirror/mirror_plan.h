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

// The most used first, by the usage history that glmd keeps of this container; those used alike, or
// never, in even order. Errors: not_found, denied, io; bad_input: the history of another model, or
// none at all; corrupt.
Result<std::vector<const Tensor*>> order_of_use(const std::string& history_path,
                                                const Container& container);

// As many as fit, in that order.
MirrorPlan plan_mirror(const std::vector<const Tensor*>& order, int64_t bytes_max);

}  // namespace glmd
