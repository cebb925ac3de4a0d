#include "host/speed_probe.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

constexpr int64_t mebibyte = 1 << 20;

TEST(SpeedProbe, takes_no_more_than_half_of_a_small_budget) {
  const ProbeSize size = probe_size(20 * mebibyte, 64, 256 * mebibyte);
  EXPECT_EQ(size.reads, 6);
  EXPECT_EQ(size.memory_bytes, 128 * mebibyte);
}

TEST(SpeedProbe, has_enough_with_a_deep_queue_and_what_no_cache_keeps) {
  const ProbeSize size = probe_size(20 * mebibyte, 4, 1024 * 1024 * mebibyte);
  EXPECT_EQ(size.reads, 16);
  EXPECT_EQ(size.memory_bytes, 256 * mebibyte);
}

TEST(SpeedProbe, measures_something_whatever_the_budget) {
  const ProbeSize size = probe_size(20 * mebibyte, 4, 1);
  EXPECT_EQ(size.reads, 1);
  EXPECT_EQ(size.memory_bytes, 4096);
}

}  // namespace
}  // namespace glmd
