// Cuts the outputs of matrices, rows of activations x rows of a matrix, into blocks for the team.
// Few rows of activations wait for memory, so that a tile of the matrix is a fair unit. Many wait
// for arithmetic: they are cut into panels and meet whole sets of tiles, and a block is large
// enough for the packing of its panel not to matter. Thread: compute, with its team.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "platform/parallel.h"

namespace glmd {

// Rows of activations that a kernel takes at once.
struct Panel {
  int64_t first, count;
};
constexpr int64_t panel_count(int64_t row_count) {
  return (row_count + panel_rows - 1) / panel_rows;
}
constexpr Panel panel_at(int64_t index, int64_t row_count) {
  const int64_t panels = panel_count(row_count), first = row_count * index / panels;
  return {first, row_count * (index + 1) / panels - first};
}

// All panels pass a range of the matrix before the next range: it may still be in a cache.
constexpr int64_t range_rows = 1024;

// Calls task(panel, begin, end, thread) so that rows [begin, end) cover [0, matrix_rows) once for
// each of `panels` panels, the largest of which has panel_rows_max rows.
template <typename Task>
void run_blocks(Team& team, int64_t panels, int64_t panel_rows_max, int64_t matrix_rows,
                const Task& task) {
  const bool are_few = panel_rows_max <= few_rows;
  const int64_t unit_rows = are_few ? tile_rows : set_rows;
  const int64_t units = (matrix_rows + unit_rows - 1) / unit_rows;
  const int64_t range = are_few ? units : range_rows / unit_rows;
  team.run(panels * units, 1, [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const int64_t first = begin / (panels * range) * range;  // unit of the range
      const int64_t range_units = std::min(range, units - first), place = begin - first * panels;
      const int64_t unit = place % range_units;
      const int64_t count = std::min(range_units - unit, end - begin);
      task(place / range_units, (first + unit) * unit_rows,
           std::min((first + unit + count) * unit_rows, matrix_rows), thread);
      begin += count;
    }
  });
}

}  // namespace glmd
