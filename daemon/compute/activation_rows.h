// One set of activation rows and, once a quantised matrix asks for them, their codes: quantised
// once and shared by all matrices that read them. Thread: compute, with its team.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "platform/parallel.h"

namespace glmd {

struct Compute {
  const KernelTable& kernels;
  Team& team;
};

class ActivationRows {
 public:
  void set(const float* values, int64_t value_stride, int64_t row_count, int64_t columns);
  const Activations& for_format(const Compute& compute, BlockFormat format);

 private:
  Activations view_{};
  bool is_quantised_ = false;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
  std::vector<int32_t> sums_;
};

// Rows [first, first + count) of `rows`.
Activations part_of(const Activations& rows, int64_t first, int64_t count);

}  // namespace glmd
