#include "plan/speed_estimate.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

constexpr int64_t gigabyte = 1'000'000'000;

// GLM-5.2 in 4.25 bits.
TokenCost glm52(int64_t dense_bytes) {
  return {.dense_bytes = dense_bytes,
          .expert_bytes = 20'054'016,
          .experts = 600,
          .expert_count = 19'200};
}

TEST(SpeedEstimate, hit_rates_follow_the_table_and_grow_with_the_arena) {
  EXPECT_EQ(expected_hit_rate(0), 0);
  EXPECT_DOUBLE_EQ(expected_hit_rate(0.10), 0.51);
  EXPECT_DOUBLE_EQ(expected_hit_rate(0.4375), 0.785);
  EXPECT_EQ(expected_hit_rate(1), 1);
  EXPECT_EQ(expected_hit_rate(7), 1);
  for (int i = 1; i <= 1000; ++i) {
    EXPECT_GT(expected_hit_rate(i / 1000.0), expected_hit_rate((i - 1) / 1000.0));
  }
}

TEST(SpeedEstimate, a_small_machine_is_bound_by_its_disk) {
  const SpeedEstimate laptop =
      estimate_speed(token_needs(glm52(9'300'000'000), 12 * gigabyte),
                     {.disk_bytes_per_s = 3e9, .memory_bytes_per_s = 60e9});
  EXPECT_EQ(laptop.bound, "disk");
  EXPECT_NEAR(laptop.tokens_per_s, 0.40, 0.01);
  EXPECT_NEAR(laptop.serial_tokens_per_s, 0.33, 0.01);
}

TEST(SpeedEstimate, nothing_hides_behind_the_output_head) {
  TokenCost cost = glm52(9'300'000'000);
  cost.head_bytes = 6'000'000'000;
  const MachineSpeed speed = {.disk_bytes_per_s = 3e9, .memory_bytes_per_s = 60e9};
  const SpeedEstimate estimate = estimate_speed(token_needs(cost, 12 * gigabyte), speed);
  EXPECT_DOUBLE_EQ(estimate.tokens_per_s, 1 / (estimate.disk_s + 0.1));
}

TEST(SpeedEstimate, a_larger_machine_is_faster_by_its_hits) {
  const TokenNeeds needs = token_needs(glm52(9'300'000'000), 50 * gigabyte);
  const SpeedEstimate desktop =
      estimate_speed(needs, {.disk_bytes_per_s = 7e9, .memory_bytes_per_s = 75e9});
  EXPECT_NEAR(desktop.tokens_per_s, 1.26, 0.03);
  EXPECT_NEAR(needs.disk_bytes, 5.5e9, 0.1e9);
}

TEST(SpeedEstimate, with_all_experts_in_memory_only_memory_counts) {
  const SpeedEstimate server = estimate_speed(token_needs(glm52(11'500'000'000), 400 * gigabyte),
                                              {.disk_bytes_per_s = 1, .memory_bytes_per_s = 450e9});
  EXPECT_EQ(server.bound, "memory");
  EXPECT_NEAR(server.tokens_per_s, 19, 0.3);
}

TEST(SpeedEstimate, a_model_without_experts_needs_no_disk) {
  const SpeedEstimate estimate =
      estimate_speed(token_needs({.dense_bytes = gigabyte}, 0),
                     {.disk_bytes_per_s = 1, .memory_bytes_per_s = 10e9});
  EXPECT_DOUBLE_EQ(estimate.tokens_per_s, 10);
}

// The embedded model on two processors that others use: a task is done in 200 us.
TEST(SpeedEstimate, a_small_model_is_bound_by_the_handing_out_of_tasks) {
  const TokenCost cost = {.dense_bytes = 3'000'000, .head_bytes = 800'000, .team_tasks = 84};
  MachineSpeed speed = {.disk_bytes_per_s = 1, .memory_bytes_per_s = 10e9, .team_task_s = 200e-6};
  const SpeedEstimate busy = estimate_speed(token_needs(cost, 0), speed);
  EXPECT_NEAR(busy.tokens_per_s, 1 / (84 * 200e-6 + 300e-6), 1e-9);
  EXPECT_EQ(busy.bound, "threads");
  speed.team_task_s = 0.4e-6;
  EXPECT_EQ(estimate_speed(token_needs(cost, 0), speed).bound, "memory");
}

}  // namespace
}  // namespace glmd
