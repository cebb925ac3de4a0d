#include "experts/look_ahead.h"

#include <gtest/gtest.h>

#include "platform/random.h"

namespace glmd {
namespace {

TEST(LookAhead, what_more_rows_guess_at_better_ranks_comes_first) {
  std::vector<Guess> guesses = {{7, 3}, {3, 2}, {5, 1},   //
                                {3, 3}, {9, 2}, {7, 1},   //
                                {3, 3}, {2, 2}, {1, 1}};  // of three rows
  rank_guesses(guesses);
  std::vector<int32_t> experts;
  for (const Guess& guess : guesses) experts.push_back(guess.expert);
  EXPECT_EQ(experts, (std::vector<int32_t>{3, 7, 2, 9, 1, 5}));
  EXPECT_EQ(guesses[0].confidence, 8);
  EXPECT_EQ(guesses[1].confidence, 4);
  guesses.clear();
  rank_guesses(guesses);
  EXPECT_TRUE(guesses.empty());
}

// Passes until the verdict, and whether it is on then.
bool verdict(double seconds_on, double seconds_off, int64_t misses) {
  LookAheadSwitch look_ahead(LookAhead::automatic);
  int64_t on_count = 0;
  for (int64_t pass = 0; pass < LookAheadSwitch::trial_passes; ++pass) {
    on_count += look_ahead.is_on();
    // One pass in eight is an outlier: somebody else used the machine.
    const double noise = pass % 8 == 3 ? 5.0 : 1.0;
    look_ahead.add_pass(noise * (look_ahead.is_on() ? seconds_on : seconds_off), misses);
  }
  EXPECT_EQ(on_count, LookAheadSwitch::trial_passes / 2);
  return look_ahead.is_on();
}

TEST(LookAhead, automatic_keeps_what_was_faster) {
  EXPECT_TRUE(verdict(0.9, 1.0, 5));
  EXPECT_FALSE(verdict(1.1, 1.0, 5));
  EXPECT_FALSE(verdict(1.0, 1.0, 5)) << "it would wear the disk for nothing";
}

// What a token has to read differs from token to token by more than looking ahead can gain: 30 ms
// of arithmetic and 6 ms for each read, less a part of the reads hidden. Some passes are disturbed,
// and the machine changes its speed every few.
int right_verdicts(double hidden_ms, bool should_be_on) {
  int right = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SplitMix random(seed);
    LookAheadSwitch look_ahead(LookAhead::automatic);
    double arithmetic_ms = 30;
    for (int64_t pass = 0; pass < LookAheadSwitch::trial_passes; ++pass) {
      if (random.below(6) == 0) arithmetic_ms = 90 - arithmetic_ms;
      const int64_t reads = 2 + random.below(9);
      const double disturbed_ms =
          random.below(16) == 0 ? 200.0 : static_cast<double>(random.below(3));
      const double ms = arithmetic_ms + 6 * static_cast<double>(reads) + disturbed_ms;
      look_ahead.add_pass((look_ahead.is_on() ? ms - hidden_ms : ms) * 1e-3, reads);
    }
    right += look_ahead.is_on() == should_be_on;
  }
  return right;
}

TEST(LookAhead, automatic_is_not_misled_by_what_passes_happen_to_read_or_when_they_run) {
  EXPECT_GE(right_verdicts(5, true), 99);  // of 81 ms
  EXPECT_GE(right_verdicts(-5, false), 99);
}

TEST(LookAhead, automatic_is_off_where_nothing_is_ever_missing) {
  EXPECT_FALSE(verdict(0.9, 1.0, 0));
}

TEST(LookAhead, automatic_tries_again) {
  LookAheadSwitch look_ahead(LookAhead::automatic);
  const auto run = [&](int64_t passes, double seconds_on) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      look_ahead.add_pass(look_ahead.is_on() ? seconds_on : 1.0, 1);
    }
  };
  run(LookAheadSwitch::trial_passes, 2.0);
  EXPECT_FALSE(look_ahead.is_on());
  run(LookAheadSwitch::verdict_passes - 1, 2.0);
  EXPECT_FALSE(look_ahead.is_on());
  run(1 + LookAheadSwitch::trial_passes, 0.5);
  EXPECT_TRUE(look_ahead.is_on());
}

TEST(LookAhead, its_state_is_told_apart_from_a_trial) {
  EXPECT_EQ(LookAheadSwitch(LookAhead::on).state(), "on");
  EXPECT_EQ(LookAheadSwitch(LookAhead::off).state(), "off");
  LookAheadSwitch look_ahead(LookAhead::automatic);
  for (int64_t pass = 0; pass < LookAheadSwitch::trial_passes; ++pass) {
    EXPECT_EQ(look_ahead.state(), "trying");
    look_ahead.add_pass(look_ahead.is_on() ? 2.0 : 1.0, 1);
  }
  EXPECT_EQ(look_ahead.state(), "off");
}

TEST(LookAhead, on_and_off_stay_what_was_asked_for) {
  LookAheadSwitch on(LookAhead::on), off(LookAhead::off);
  for (int64_t pass = 0; pass < 1000; ++pass) {
    on.add_pass(on.is_on() ? 2.0 : 1.0, 1);
    off.add_pass(off.is_on() ? 1.0 : 2.0, 1);
    ASSERT_TRUE(on.is_on());
    ASSERT_FALSE(off.is_on());
  }
}

}  // namespace
}  // namespace glmd
