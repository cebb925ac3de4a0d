#include "platform/sharing_gain.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

constexpr int64_t us = 1000, ms = 1000 * us;

TEST(SharingGain, halves_that_end_together_are_shared_for_ever) {
  SharingGain gain;
  for (int64_t task = 0; task < 10000; ++task) {
    gain.note(20 * us, 0.5, 1 * us, task * 30 * us);
    ASSERT_FALSE(gain.is_paused(task * 30 * us));
  }
}

TEST(SharingGain, a_helper_that_sleeps_through_a_slice_ends_sharing_for_a_while) {
  SharingGain gain;
  gain.note(20 * us, 0.5, 3 * ms, 10 * ms);
  EXPECT_TRUE(gain.is_paused(10 * ms));
  EXPECT_TRUE(gain.is_paused(11 * ms - 1));
  EXPECT_FALSE(gain.is_paused(11 * ms));
}

TEST(SharingGain, pauses_double_while_each_trial_loses_and_start_anew_after_gains) {
  SharingGain gain;
  int64_t now = 0;
  for (const int64_t pause_ms : {1, 2, 4, 8, 16, 32, 64, 128, 128}) {
    gain.note(20 * us, 0.5, 3 * ms, now);
    EXPECT_TRUE(gain.is_paused(now + pause_ms * ms - 1));
    now += pause_ms * ms;
    EXPECT_FALSE(gain.is_paused(now));
  }
  for (int task = 0; task < 100; ++task) gain.note(20 * us, 0.5, 0, now);
  gain.note(20 * us, 0.5, 3 * ms, now);
  EXPECT_FALSE(gain.is_paused(now + 1 * ms));
}

TEST(SharingGain, long_tasks_gain_more_than_a_slice_costs) {
  SharingGain gain;
  for (int task = 0; task < 100; ++task) {
    gain.note(10 * ms, 0.4, 3 * ms, task);
    ASSERT_FALSE(gain.is_paused(task));
  }
}

// Hundreds of tasks a step wait a little each: no single loss is large.
TEST(SharingGain, many_small_losses_count_too) {
  SharingGain gain;
  int tasks = 0;
  while (!gain.is_paused(tasks) && tasks < 1000) gain.note(2 * us, 0.1, 10 * us, ++tasks);
  EXPECT_LT(tasks, 20);
}

}  // namespace
}  // namespace glmd
