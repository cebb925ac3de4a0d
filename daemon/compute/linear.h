// y = W x for many rows, over the team. Thread: compute.
#pragma once

#include <cstdint>
#include <vector>

#include "compute/activation_rows.h"

namespace glmd {

// y[n * y_stride + r] for all rows r of w.
void multiply(const Compute& compute, const Matrix& w, ActivationRows& x, float* y,
              int64_t y_stride);

// Heads stacked in one matrix of `head_count` equal parts, each with its own input columns: for
// head h, y[n * y_stride + h * y_head_stride + i] = row h * rows_per_head + i of w . x[n * x_stride
// + h * x_head_stride ...]. Scratch: of all threads, one after the other.
struct HeadScratch {
  std::vector<int8_t> codes;
  std::vector<float> scales, spills;
  std::vector<int32_t> sums;
};
struct HeadStrides {
  int64_t row, head;
};
void multiply_heads(const Compute& compute, const Matrix& w, int64_t head_count, const float* x,
                    HeadStrides x_strides, float* y, HeadStrides y_strides, int64_t row_count,
                    HeadScratch& scratch);

}  // namespace glmd
