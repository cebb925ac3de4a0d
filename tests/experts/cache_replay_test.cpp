#include "tools/replay/cache_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "experts/expert_cache.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One layer, one expert a token.
ReplayTrace sequence_of(const std::vector<int32_t>& experts) {
  ReplayTrace trace;
  trace.experts_per_layer = 8;
  trace.expert_bytes = {100};
  trace.counted_tokens = std::ssize(experts);
  for (const int32_t expert : experts) trace.add(0, 1, std::vector<int32_t>{expert}, true);
  return trace;
}

int64_t hits(const ReplayTrace& trace, const char* policy, int64_t slots) {
  const ReplayTotals totals = replay(trace, parse_policy(policy).value(), slots);
  EXPECT_EQ(totals.read_bytes, (totals.wanted - totals.hits) * 100);
  return totals.hits;
}

TEST(CacheReplay, each_policy_evicts_as_its_name_says) {
  const ReplayTrace trace = sequence_of({0, 0, 1, 2, 0, 1});
  EXPECT_EQ(hits(trace, "lru", 2), 1);         // 2 takes the place of 0, 0 that of 1, 1 that of 2
  EXPECT_EQ(hits(trace, "lfu", 2), 2);         // 2 takes the place of 1: 0 was used twice
  EXPECT_EQ(hits(trace, "belady", 2), 3);      // 2 is never wanted again
  EXPECT_EQ(hits(trace, "decay:1000", 2), 2);  // as lfu
  EXPECT_EQ(hits(trace, "decay:0.01", 2), 1);  // as lru
  for (const char* policy : {"lru", "lfu", "belady", "glmd"}) EXPECT_EQ(hits(trace, policy, 3), 3);
}

TEST(CacheReplay, experts_of_a_step_are_known_before_any_goes) {
  ReplayTrace trace = sequence_of({});
  trace.add(0, 1, std::vector<int32_t>{0, 1}, true);
  trace.add(0, 1, std::vector<int32_t>{2, 0}, true);
  EXPECT_EQ(hits(trace, "lru", 2), 0);  // 2 takes the place of 0
  EXPECT_EQ(hits(trace, "glmd", 2), 1);
  EXPECT_EQ(hits(trace, "belady", 2), 1);
}

TEST(CacheReplay, rows_that_choose_the_same_expert_want_it_once) {
  ReplayTrace trace = sequence_of({});
  trace.add(0, 3, std::vector<int32_t>{1, 2, 2, 3, 1, 2}, true);
  ASSERT_EQ(trace.uses.size(), 3U);
  EXPECT_EQ(trace.uses[1].expert, 2);
  EXPECT_EQ(trace.uses[1].rows, 3);
}

TEST(CacheReplay, a_step_of_more_experts_than_slots_runs_in_waves) {
  ReplayTrace trace = sequence_of({});
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int token = 0; token < 10; ++token) trace.add(0, 1, all, true);
  EXPECT_EQ(hits(trace, "lru", 4), 0);
  EXPECT_GE(hits(trace, "glmd", 4), 9);
  EXPECT_EQ(hits(trace, "belady", 4), 9 * 4);
}

// A prompt of that many rows wants each of 16 experts again, and a few keep their slots.
TEST(CacheReplay, long_prompts_stream_past_the_hottest_experts) {
  ReplayTrace trace;
  trace.experts_per_layer = 16;
  trace.expert_bytes = {100};
  std::vector<int32_t> choices(48);
  for (size_t row = 0; row < choices.size(); ++row) choices[row] = static_cast<int32_t>(row % 16);
  for (int prompt = 0; prompt < 10; ++prompt) trace.add(0, 48, choices, true);
  EXPECT_EQ(hits(trace, "lru", 8), 0);
  EXPECT_EQ(hits(trace, "glmd", 8), 9 * 6);  // two slots are for those that pass
}

// What the rule of eviction is for.
void expect_as_good_as_the_best_simple_rule(int64_t text_tokens) {
  SyntheticRoutingOptions options;
  options.layers = 8;
  options.text_tokens = text_tokens;
  const ReplayTrace trace = synthetic_trace(options, 1200, 400, 100);
  for (const int64_t slots : {4, 8, 12, 16, 22, 26, 32, 40, 64, 128, 192}) {
    SCOPED_TRACE(slots);
    const auto rate = [&](const char* policy) {
      return replay(trace, parse_policy(policy).value(), slots * options.layers).hit_rate();
    };
    const double lru = rate("lru"), glmd = rate("glmd");
    EXPECT_GT(glmd, lru - 0.01);
    EXPECT_GT(glmd, rate("lfu") - 0.01);
    EXPECT_LT(glmd, rate("belady"));
    if (slots == 8) {
      EXPECT_GT(glmd, lru + 0.1);
    }
  }
}

TEST(CacheReplay, the_daemons_rule_is_as_good_as_the_best_simple_one_at_every_size) {
  expect_as_good_as_the_best_simple_rule(0);
}

TEST(CacheReplay, the_daemons_rule_is_as_good_as_the_best_simple_one_where_texts_change) {
  for (const int64_t text_tokens : {200, 64, 32}) {
    SCOPED_TRACE(text_tokens);
    expect_as_good_as_the_best_simple_rule(text_tokens);
  }
}

TEST(CacheReplay, slots_that_are_over_when_layers_share_evenly_cost_no_hits) {
  SyntheticRoutingOptions options;
  options.layers = 6;
  options.experts = 48;
  const ReplayTrace trace = synthetic_trace(options, 400, 100, 4096);
  int64_t hits = 0;
  for (int64_t slots = 12 * options.layers; slots <= 14 * options.layers; ++slots) {
    const ReplayTotals totals = replay(trace, parse_policy("glmd").value(), slots);
    EXPECT_GE(totals.hits + totals.hits / 100, hits) << slots;
    hits = totals.hits;
  }
}

TEST(CacheReplay, a_recorded_trace_becomes_its_layers_with_experts) {
  const TemporaryFolder folder;
  const RoutingShape shape{
      .identity = 1, .experts = 4, .chosen = 2, .expert_bytes = {0, 10, 20, 30}};
  {
    const auto writer = std::move(RoutingTraceWriter::create(folder / "trace", shape, {})).value();
    using Rows = std::vector<uint32_t>;
    using Experts = std::vector<uint16_t>;
    writer->routed({.layer = 1, .positions = Rows{0, 1}, .experts = Experts{0, 1, 1, 2}});
    writer->routed({.layer = 3, .positions = Rows{0, 1}, .experts = Experts{3, 2, 3, 2}});
    writer->routed({.layer = 1, .positions = Rows{2}, .experts = Experts{0, 1}});
    writer->routed({.layer = 3, .positions = Rows{2}, .experts = Experts{0, 3}});
  }
  RoutingTraceReader reader = RoutingTraceReader::open(folder / "trace").value();
  const ReplayTrace trace = recorded_trace(reader, 2).value();
  EXPECT_THAT(trace.expert_bytes, ElementsAre(10, 30));
  EXPECT_EQ(trace.expert_count(), 8);
  EXPECT_EQ(trace.counted_tokens, 1);
  ASSERT_EQ(trace.steps.size(), 4U);
  EXPECT_FALSE(trace.steps[1].is_counted);
  EXPECT_TRUE(trace.steps[3].is_counted);
  EXPECT_EQ(trace.first_expert(trace.steps[3]), 4);
  EXPECT_EQ(trace.uses_of(trace.steps[3])[0].expert, 0);
  EXPECT_EQ(trace.uses_of(trace.steps[3])[1].expert, 3);
  const ReplayTotals totals = replay(trace, parse_policy("lru").value(), 8);
  EXPECT_EQ(totals.wanted, 4);
  EXPECT_EQ(totals.hits, 3);
  EXPECT_EQ(totals.read_bytes, 30);
}

TEST(CacheReplay, unknown_policies_are_usage_errors) {
  for (const char* name : {"", "mru", "decay", "decay:", "decay:0", "decay:-1", "decay:nan",
                           "decay:1x", "decay:inf"}) {
    const Result<ReplayPolicy> policy = parse_policy(name);
    ASSERT_FALSE(policy.ok()) << name;
    EXPECT_EQ(policy.error().kind, ErrorKind::usage);
    EXPECT_THAT(policy.error().message, HasSubstr("wanted glmd, lru"));
  }
}

}  // namespace
}  // namespace glmd
