#include "compute/linear.h"

#include <algorithm>
#include <cstring>

#include "compute/output_blocks.h"
#include "platform/aligned_memory.h"
#include "platform/grown.h"

namespace glmd {

void multiply(const Compute& compute, const Matrix& w, ActivationRows& x, float* y,
              int64_t y_stride) {
  const Activations& input = x.for_format(compute, w.format);
  const auto kernel = compute.kernels.matmul[static_cast<int>(w.format)];
  run_blocks(compute.team, panel_count(input.row_count), input.row_count, w.rows,
             [&](int64_t index, int64_t begin, int64_t end, int) {
               const Panel panel = panel_at(index, input.row_count);
               kernel(w, part_of(input, panel.first, panel.count), y + panel.first * y_stride,
                      y_stride, begin, end);
             });
}

void multiply_heads(const Compute& compute, const Matrix& w, int64_t head_count, const float* x,
                    HeadStrides x_strides, float* y, HeadStrides y_strides, int64_t row_count,
                    HeadScratch& scratch) {
  const int64_t rows_per_head = w.rows / head_count;
  const int64_t padded = padded_columns(w.columns), groups = padded / group_columns;
  const bool quantised = is_quantised(w.format);
  // A head whose rows do not begin at a tile border is computed with its neighbours' rows and
  // copied out.
  const bool is_aligned = rows_per_head % tile_rows == 0;
  const int64_t spread = is_aligned ? 0 : rows_per_head + 2 * tile_rows;
  const auto kernel = compute.kernels.matmul[static_cast<int>(w.format)];
  const int64_t threads = compute.team.thread_count(), rows = std::min(row_count, panel_rows);
  // Whole cache lines for each thread.
  const int64_t code_stride = round_up(rows * padded, 64),
                spill_stride = padded_lanes(rows * spread);
  const int64_t group_stride = padded_lanes(rows * groups);
  int8_t* all_codes = grown_aligned(scratch.codes, threads * code_stride);
  float* all_scales = grown_aligned(scratch.scales, threads * group_stride);
  int32_t* all_sums = grown_aligned(scratch.sums, threads * group_stride);
  float* all_spills = grown_aligned(scratch.spills, threads * spill_stride);

  // A panel of a head at a time: its codes stay in the first cache.
  const int64_t panels = panel_count(row_count);
  compute.team.run(head_count * panels, 1, [&](int64_t unit_begin, int64_t unit_end, int thread) {
    for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
      const int64_t head = unit / panels;
      const Panel panel = panel_at(unit % panels, row_count);
      Activations input{.values = x + head * x_strides.head + panel.first * x_strides.row,
                        .value_stride = x_strides.row,
                        .codes = nullptr,
                        .scales = nullptr,
                        .sums = nullptr,
                        .row_count = panel.count,
                        .columns = w.columns};
      if (quantised) {
        int8_t* codes = all_codes + thread * code_stride;
        float* scales = all_scales + thread * group_stride;
        int32_t* sums = all_sums + thread * group_stride;
        compute.kernels.quantise(input.values, input.value_stride, panel.count, w.columns, codes,
                                 scales, sums);
        input.codes = codes;
        input.scales = scales;
        input.sums = sums;
      }
      const int64_t begin = head * rows_per_head, end = begin + rows_per_head;
      float* target = y + head * y_strides.head + panel.first * y_strides.row;
      if (is_aligned) {
        kernel(w, input, target - begin, y_strides.row, begin, end);
        continue;
      }
      const int64_t tile_begin = begin / tile_rows * tile_rows;
      const int64_t tile_end = std::min(round_up(end, tile_rows), w.rows);
      float* spill = all_spills + thread * spill_stride;
      kernel(w, input, spill - tile_begin, spread, tile_begin, tile_end);
      for (int64_t n = 0; n < panel.count; ++n) {
        std::memcpy(target + n * y_strides.row, spill + n * spread + (begin - tile_begin),
                    static_cast<size_t>(rows_per_head) * sizeof(float));
      }
    }
  });
}

}  // namespace glmd
