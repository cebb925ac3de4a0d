// Blocks of outputs cover everything once, whatever the shape.
#include "compute/output_blocks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace glmd {
namespace {

TEST(OutputBlocks, every_output_is_computed_once) {
  Team team(3);
  for (const int64_t row_count : {1, 2, 3, 63, 64, 65, 130, 300}) {
    for (const int64_t matrix_rows : {1, 8, 31, 33, 1024, 1025, 2600}) {
      std::vector<std::atomic<int>> times(static_cast<size_t>(row_count * matrix_rows));
      run_blocks(team, panel_count(row_count), row_count, matrix_rows,
                 [&](int64_t index, int64_t begin, int64_t end, int) {
                   EXPECT_EQ(begin % tile_rows, 0);
                   EXPECT_LE(end, matrix_rows);
                   const Panel panel = panel_at(index, row_count);
                   EXPECT_LE(panel.count, panel_rows);
                   for (int64_t row = panel.first; row < panel.first + panel.count; ++row) {
                     for (int64_t r = begin; r < end; ++r)
                       ++times[static_cast<size_t>(row * matrix_rows + r)];
                   }
                 });
      for (const std::atomic<int>& count : times) {
        ASSERT_EQ(count, 1) << row_count << " rows, matrix of " << matrix_rows;
      }
    }
  }
}

}  // namespace
}  // namespace glmd
