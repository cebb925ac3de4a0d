// The bound of a streaming run out of slices measured around its pieces.
#include "tools/bench/stream_bound.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

constexpr AloneSlice slice = {.disk_bytes_per_s = 4e9,
                              .serial_bytes_per_s = 2e9,
                              .compute_seconds = 0.1,
                              .together_disk_bytes_per_s = 3e9,
                              .together_compute_seconds = 0.2};

TEST(StreamBound, is_the_slower_of_disk_and_arithmetic) {
  const AloneSlice slices[] = {slice, slice};
  const StreamPiece disk_bound[] = {{.tokens = 10, .seconds = 5, .needed_bytes = 16e9}};
  const StreamBound disk = bound_of(disk_bound, slices);
  EXPECT_DOUBLE_EQ(disk.disk_seconds, 4);
  EXPECT_DOUBLE_EQ(disk.compute_seconds, 1);
  EXPECT_DOUBLE_EQ(disk.share(), 0.8);
  const StreamPiece compute_bound[] = {{.tokens = 10, .seconds = 2, .needed_bytes = 2e9}};
  EXPECT_DOUBLE_EQ(bound_of(compute_bound, slices).share(), 0.5);
}

// A fifth of the arithmetic is heads.
TEST(StreamBound, nothing_hides_behind_the_output_head) {
  AloneSlice with_head = slice;
  with_head.head_seconds = 0.02;
  const AloneSlice slices[] = {with_head, with_head};
  const StreamPiece disk_bound[] = {{.tokens = 10, .seconds = 5, .needed_bytes = 16e9}};
  EXPECT_DOUBLE_EQ(bound_of(disk_bound, slices).least_seconds(), 0.2 + 4);
  const StreamPiece compute_bound[] = {{.tokens = 10, .seconds = 2, .needed_bytes = 2e9}};
  EXPECT_DOUBLE_EQ(bound_of(compute_bound, slices).least_seconds(), 1);
  // The heads, then bodies of 1.6 s in which 4.8 GB come; what is left comes at 4 GB/s.
  EXPECT_DOUBLE_EQ(together_seconds(with_head, 16e9, 10), 0.2 + 1.6 + 2.8);
}

TEST(StreamBound, serial_reads_layer_by_layer_then_computes) {
  const AloneSlice slices[] = {slice, slice};
  const StreamPiece pieces[] = {{.tokens = 10, .seconds = 5, .needed_bytes = 16e9}};
  EXPECT_DOUBLE_EQ(bound_of(pieces, slices).serial_seconds, 9);
  EXPECT_DOUBLE_EQ(bound_of(pieces, slices).over_serial(), 1.8);
}

TEST(StreamBound, both_at_once_until_one_is_done_then_the_other_alone) {
  // Ten tokens take 2 s, in which 6 GB come; what is left comes at 4 GB/s.
  EXPECT_DOUBLE_EQ(together_seconds(slice, 16e9, 10), 2 + 2.5);
  // 3 GB take 1 s, in which 5 tokens are computed; the others take 0.1 s each.
  EXPECT_DOUBLE_EQ(together_seconds(slice, 3e9, 10), 1 + 0.5);
}

// A disk that became twice as fast during the run, and one that was slow for a moment.
TEST(StreamBound, holds_each_piece_to_the_better_of_its_neighbours) {
  AloneSlice slices[] = {slice, slice, slice};
  slices[0].disk_bytes_per_s = 2e9;
  slices[1].compute_seconds = 0.3;
  slices[2].disk_bytes_per_s = 8e9;
  const StreamPiece pieces[] = {{.tokens = 10, .seconds = 5, .needed_bytes = 16e9},
                                {.tokens = 10, .seconds = 3, .needed_bytes = 16e9}};
  const StreamBound bound = bound_of(pieces, slices);
  EXPECT_DOUBLE_EQ(bound.disk_seconds, 4 + 2);
  EXPECT_DOUBLE_EQ(bound.compute_seconds, 2);
  EXPECT_DOUBLE_EQ(bound.share(), 0.75);
}

// Only the totals are compared: what one piece has too much of, another may hide.
TEST(StreamBound, pieces_may_differ_in_what_bounds_them) {
  const AloneSlice slices[] = {slice, slice, slice};
  const StreamPiece pieces[] = {{.tokens = 10, .seconds = 2, .needed_bytes = 8e9},
                                {.tokens = 10, .seconds = 2, .needed_bytes = 0}};
  EXPECT_DOUBLE_EQ(bound_of(pieces, slices).least_seconds(), 2);
}

}  // namespace
}  // namespace glmd
