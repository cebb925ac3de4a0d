#include "model/linear.h"

#include <algorithm>
#include <cstring>

#include "platform/aligned_memory.h"
#include "platform/grown.h"

namespace glmd {

void multiply(const Compute& compute, const Matrix& w, ActivationRows& x, float* y,
              int64_t y_stride) {
  const Activations& input = x.for_format(compute, w.format);
  const auto kernel = compute.kernels.matmul[static_cast<int>(w.format)];
  compute.team.run(w.rows, tile_rows, [&](int64_t begin, int64_t end, int) {
    kernel(w, input, y, y_stride, begin, end);
  });
}

void multiply_heads(const Compute& compute, const Matrix& w, int64_t head_count, const float* x,
                    HeadStrides x_strides, float* y, HeadStrides y_strides, int64_t row_count,
                    HeadScratch& scratch) {
  const int64_t rows_per_head = w.rows / head_count;
  const int64_t padded = padded_columns(w.columns), groups = padded / group_columns;
  const bool quantised = is_quantised(w.format);
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int32_t* sums = nullptr;
  if (quantised) {
    codes = grown(scratch.codes, head_count * row_count * padded);
    scales = grown(scratch.scales, head_count * row_count * groups);
    sums = grown(scratch.sums, head_count * row_count * groups);
  }
  // A head whose rows do not begin at a tile border is computed with its neighbours' rows and
  // copied out.
  const bool is_aligned = rows_per_head % tile_rows == 0;
  const int64_t spread = is_aligned ? 0 : rows_per_head + 2 * tile_rows;
  float* spill = is_aligned ? nullptr : grown(scratch.padded, head_count * row_count * spread);
  const auto kernel = compute.kernels.matmul[static_cast<int>(w.format)];

  compute.team.run(head_count, 1, [&](int64_t head_begin, int64_t head_end, int) {
    for (int64_t head = head_begin; head < head_end; ++head) {
      Activations input{.values = x + head * x_strides.head,
                        .value_stride = x_strides.row,
                        .codes = nullptr,
                        .scales = nullptr,
                        .sums = nullptr,
                        .row_count = row_count,
                        .columns = w.columns};
      if (quantised) {
        int8_t* head_codes = codes + head * row_count * padded;
        float* head_scales = scales + head * row_count * groups;
        int32_t* head_sums = sums + head * row_count * groups;
        compute.kernels.quantise(input.values, input.value_stride, row_count, w.columns, head_codes,
                                 head_scales, head_sums);
        input.codes = head_codes;
        input.scales = head_scales;
        input.sums = head_sums;
      }
      const int64_t begin = head * rows_per_head, end = begin + rows_per_head;
      float* target = y + head * y_strides.head;
      if (is_aligned) {
        kernel(w, input, target - begin, y_strides.row, begin, end);
        continue;
      }
      const int64_t tile_begin = begin / tile_rows * tile_rows;
      const int64_t tile_end = std::min(round_up(end, tile_rows), w.rows);
      float* head_spill = spill + head * row_count * spread;
      kernel(w, input, head_spill - tile_begin, spread, tile_begin, tile_end);
      for (int64_t n = 0; n < row_count; ++n) {
        std::memcpy(target + n * y_strides.row, head_spill + n * spread + (begin - tile_begin),
                    static_cast<size_t>(rows_per_head) * sizeof(float));
      }
    }
  });
}

}  // namespace glmd
