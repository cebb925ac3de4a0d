#include "generation/read_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace glmd {
namespace {

using testing::ElementsAre;

constexpr int64_t ns_per_s = 1'000'000'000;

PendingRead read_begun_at(int64_t second) {
  return {.path = "/srv/experts-003.safetensors",
          .offset = 4096,
          .bytes = 2097152,
          .begun_ns = second * ns_per_s};
}

// A look every second; the seconds in which something was said of it.
std::vector<int64_t> seconds_with_a_line(ReadWatch& watch, int64_t from, int64_t to, auto oldest) {
  std::vector<int64_t> seconds;
  for (int64_t second = from; second < to; ++second) {
    if (watch.look(oldest(second), second * ns_per_s)) seconds.push_back(second);
  }
  return seconds;
}

TEST(ReadWatch, a_read_that_hangs_is_told_after_pauses_that_double_and_at_its_end) {
  ReadWatch watch;
  const auto hangs = [](int64_t) { return std::optional(read_begun_at(100)); };
  EXPECT_THAT(seconds_with_a_line(watch, 100, 200, hangs), ElementsAre(105, 110, 120, 140, 180));
  EXPECT_EQ(watch.look(std::nullopt, 237 * ns_per_s),
            "/srv/experts-003.safetensors: read of 2097152 bytes at 4096: ended after 137 s, "
            "continuing");
  EXPECT_FALSE(watch.look(std::nullopt, 238 * ns_per_s));
}

TEST(ReadWatch, a_warning_names_file_place_and_age) {
  ReadWatch watch;
  EXPECT_EQ(watch.look(read_begun_at(100), 107 * ns_per_s),
            "/srv/experts-003.safetensors: read of 2097152 bytes at 4096: no answer for 7 s, "
            "waiting");
}

TEST(ReadWatch, a_disk_that_hangs_ever_again_is_told_ever_more_rarely) {
  ReadWatch watch;
  // Each read takes 6 s, all day.
  const auto slow = [](int64_t second) { return std::optional(read_begun_at(second / 6 * 6)); };
  const std::vector<int64_t> seconds = seconds_with_a_line(watch, 0, 24 * 3600, slow);
  EXPECT_GE(seconds.size(), 20U);
  EXPECT_LE(seconds.size(), 40U);
  const auto well = [](int64_t second) { return std::optional(read_begun_at(second)); };
  EXPECT_LE(seconds_with_a_line(watch, 24 * 3600, 72 * 3600, well).size(), 1U);
  const auto hangs = [](int64_t) { return std::optional(read_begun_at(72 * 3600)); };
  EXPECT_THAT(seconds_with_a_line(watch, 72 * 3600, 72 * 3600 + 15, hangs),
              ElementsAre(72 * 3600 + 5, 72 * 3600 + 10));
}

TEST(ReadWatch, of_a_disk_in_order_nothing_is_said) {
  ReadWatch watch;
  const auto well = [](int64_t second) { return std::optional(read_begun_at(second - 4)); };
  EXPECT_TRUE(seconds_with_a_line(watch, 10, 1000, well).empty());
}

}  // namespace
}  // namespace glmd
