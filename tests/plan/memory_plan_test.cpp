#include "plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace glmd {
namespace {

using testing::HasSubstr;

constexpr int64_t mib = 1 << 20;
constexpr int64_t gib = 1 << 30;

MemoryNeeds needs_of_glm52(int64_t budget_bytes) {
  return {
      .limits = {{"--memory", budget_bytes}},
      .model = {.dense_bytes = 12 * gib,
                .kv_bytes_per_token = 95 * 1024,
                .scratch = {.row_bytes = 2 * mib, .thread_bytes = mib, .thread_token_bytes = 12},
                .arena_bytes_min = 40 * mib,
                .experts_bytes = 19200 * 20 * mib,
                .context_max = 1 << 20},
      .threads = 16,
      .has_clients = true};
}

TEST(MemoryPlan, the_smallest_limit_is_the_budget_and_is_named) {
  MemoryNeeds needs = needs_of_glm52(64 * gib);
  needs.limits.push_back({"/sys/fs/cgroup/a/memory.high", 48 * gib});
  needs.limits.push_back({"MemAvailable x 0.88", 100 * gib});
  const MemoryPlan plan = plan_memory(needs).value();
  EXPECT_EQ(plan.budget_bytes, 48 * gib);
  EXPECT_EQ(plan.budget_source, "/sys/fs/cgroup/a/memory.high");
  EXPECT_THAT(plan.to_text(), HasSubstr("/sys/fs/cgroup/a/memory.high"));
}

TEST(MemoryPlan, a_budget_below_what_was_asked_for_says_so) {
  MemoryNeeds needs = needs_of_glm52(1000 * gib);
  needs.asked_bytes = 1000 * gib;
  EXPECT_FALSE(plan_memory(needs).value().missed_bytes);
  needs.limits.push_back({"MemAvailable x 0.88", 100 * gib});
  const MemoryPlan plan = plan_memory(needs).value();
  EXPECT_EQ(plan.missed_bytes, 1000 * gib);
  EXPECT_THAT(plan.to_text(),
              HasSubstr("MemAvailable x 0.88, instead of 1073741824000 bytes asked for"));
}

TEST(MemoryPlan, the_terms_never_exceed_the_budget) {
  for (int64_t budget = 13 * gib; budget < 600 * gib; budget += 7 * gib / 3) {
    const auto plan = plan_memory(needs_of_glm52(budget));
    ASSERT_TRUE(plan.ok()) << budget;
    EXPECT_LE(plan.value().total_bytes(), budget);
    EXPECT_GE(plan.value().arena_bytes, 40 * mib);
    EXPECT_GE(plan.value().context_tokens, 64);
    EXPECT_GE(plan.value().rows_max, 16);
  }
}

TEST(MemoryPlan, what_is_left_goes_to_the_arena_and_no_more_than_all_experts) {
  const MemoryPlan plan = plan_memory(needs_of_glm52(64 * gib)).value();
  EXPECT_EQ(plan.total_bytes(), 64 * gib);
  const MemoryPlan ample = plan_memory(needs_of_glm52(1000 * gib)).value();
  EXPECT_EQ(ample.arena_bytes, 19200 * 20 * mib);
}

TEST(MemoryPlan, more_budget_never_means_a_smaller_context) {
  int64_t context = 0;
  for (int64_t budget = 13 * gib; budget < 200 * gib; budget += gib) {
    const int64_t next = plan_memory(needs_of_glm52(budget)).value().context_tokens;
    EXPECT_GE(next, context) << budget;
    context = next;
  }
}

TEST(MemoryPlan, scratch_is_that_of_two_passes_with_all_threads_and_the_whole_context) {
  MemoryNeeds needs = needs_of_glm52(64 * gib);
  needs.context_tokens = 5000;
  needs.sessions = 3;
  needs.model.scratch = {.pass_bytes = 7,
                         .row_bytes = 1000,
                         .logits_bytes = 500,
                         .thread_bytes = 300,
                         .thread_token_bytes = 12};
  const int64_t pass = 7 + 512 * 1000 + 3 * 500 + 16 * (300 + 5056 * 12);
  EXPECT_EQ(plan_memory(needs).value().scratch_bytes, 2 * pass);
}

TEST(MemoryPlan, prompts_have_a_share_and_their_length_follows_from_it) {
  const MemoryPlan ample = plan_memory(needs_of_glm52(64 * gib)).value();
  EXPECT_EQ(ample.prompt_bytes_max, 8 * mib);
  EXPECT_EQ(ample.prompts_bytes, (36 + 8) * 8 * mib);
  MemoryNeeds small = needs_of_glm52(2 * gib);
  small.model.dense_bytes = gib;
  const MemoryPlan plan = plan_memory(small).value();
  EXPECT_EQ(plan.prompt_bytes_max, gib / 24 / 44);
  EXPECT_EQ(plan.waiting_prompts_bytes_max, 8 * plan.prompt_bytes_max);
  small.has_clients = false;
  EXPECT_EQ(plan_memory(small).value().prompts_bytes, 0);
}

TEST(MemoryPlan, settings_are_kept) {
  MemoryNeeds needs = needs_of_glm52(64 * gib);
  needs.context_tokens = 5000;
  needs.sessions = 2;
  const MemoryPlan plan = plan_memory(needs).value();
  EXPECT_EQ(plan.context_tokens, 5000);
  EXPECT_EQ(plan.sessions, 2);
  EXPECT_EQ(plan.kv_bytes, int64_t{5056} * 2 * 95 * 1024);  // whole blocks of 64 tokens
}

TEST(MemoryPlan, below_the_floor_the_sum_is_refused_with_every_term) {
  const auto plan = plan_memory(needs_of_glm52(12 * gib));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().kind, ErrorKind::no_memory);
  for (const char* term : {"dense weights", "KV cache", "scratch", "prompts", "reserve",
                           "expert arena", "total", "--memory", "12884901888"}) {
    EXPECT_THAT(plan.error().message, HasSubstr(term));
  }
}

TEST(MemoryPlan, the_floor_is_the_least_budget_that_is_not_refused) {
  for (const int64_t dense_bytes : {gib / 64, 12 * gib}) {
    MemoryNeeds needs = needs_of_glm52(600 * gib);
    needs.model.dense_bytes = dense_bytes;
    const MemoryPlan ample = plan_memory(needs).value();
    EXPECT_THAT(ample.to_text(), HasSubstr(fmt::format("floor {:>26} bytes", ample.floor_bytes)));
    needs.limits.front().bytes = ample.floor_bytes;
    EXPECT_TRUE(plan_memory(needs).ok());
    needs.limits.front().bytes = ample.floor_bytes - 1;
    const auto refused = plan_memory(needs);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message,
                HasSubstr(fmt::format("wanted at least {} bytes", ample.floor_bytes)));
  }
}

TEST(MemoryPlan, a_context_the_model_was_not_made_for_is_refused) {
  MemoryNeeds needs = needs_of_glm52(64 * gib);
  needs.context_tokens = (1 << 20) + 1;
  const auto plan = plan_memory(needs);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().kind, ErrorKind::config);
}

TEST(MemoryPlan, a_model_without_experts_has_no_arena) {
  MemoryNeeds needs = needs_of_glm52(64 * gib);
  needs.model.arena_bytes_min = 0;
  needs.model.experts_bytes = 0;
  EXPECT_EQ(plan_memory(needs).value().arena_bytes, 0);
}

}  // namespace
}  // namespace glmd
