// The least time that reading experts and arithmetic can take together: the slower of the two,
// beside the output head. That one hides no reads: it follows the last expert of a token, and until
// it is done nobody knows the next token. Pure.
#pragma once

#include <algorithm>

namespace glmd {

// `arithmetic` includes `head`; all three in one unit.
inline double least_time(double disk, double arithmetic, double head) {
  return head + std::max(disk, arithmetic - head);
}

}  // namespace glmd
