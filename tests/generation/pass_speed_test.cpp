#include "generation/pass_speed.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

constexpr int64_t expert_bytes = 1'000'000;

// Passes of 20 ms of arithmetic that need 8 experts each.
class Passes {
 public:
  explicit Passes(PassSpeed& speed) : speed_(speed) {}

  // Reads take so long and are all waited for.
  void run(int64_t count, double read_seconds, int64_t wasted = 0) {
    for (int64_t i = 0; i < count; ++i) {
      const ExpertCacheStats before = now_;
      now_.misses += 8;
      now_.ahead_wasted += wasted;
      now_.read_bytes += (8 + wasted) * expert_bytes;
      now_.read_seconds += read_seconds;
      now_.wait_seconds += read_seconds;
      speed_.add(0.02 + read_seconds, 0, before, now_);
    }
  }

 private:
  PassSpeed& speed_;
  ExpertCacheStats now_;
};

double real(const PassSpeed& speed, const char* name) {
  return speed.to_json().find(name)->as_real();
}

TEST(PassSpeed, reads_are_held_to_the_best_rate_that_the_disk_gave) {
  PassSpeed speed;
  Passes passes(speed);
  passes.run(100, 0.016);
  EXPECT_NEAR(real(speed, "best_read_bytes_per_s"), 0.5e9, 1);
  EXPECT_NEAR(real(speed, "achieved_of_bound"), 0.020 / 0.036, 1e-9);
}

TEST(PassSpeed, a_disk_that_gets_slower_does_not_raise_the_share) {
  PassSpeed speed;
  Passes passes(speed);
  passes.run(100, 0.016);
  double before = real(speed, "achieved_of_bound");
  for (int i = 0; i < 20; ++i) {
    passes.run(5, 0.160);
    const double now = real(speed, "achieved_of_bound");
    EXPECT_LT(now, before);
    before = now;
  }
  EXPECT_LT(before, 0.2);
}

TEST(PassSpeed, guesses_that_were_read_for_nothing_are_not_needed) {
  PassSpeed speed;
  Passes passes(speed);
  passes.run(100, 0.032, 8);
  EXPECT_EQ(speed.to_json().find("needed_bytes")->as_integer(), 100 * 8 * expert_bytes);
  EXPECT_NEAR(real(speed, "best_read_bytes_per_s"), 0.5e9, 1);
  EXPECT_NEAR(real(speed, "achieved_of_bound"), 0.020 / 0.052, 1e-9);
}

TEST(PassSpeed, without_reads_arithmetic_alone_is_the_bound) {
  PassSpeed speed;
  speed.add(0.5, 0.1, {}, {});
  EXPECT_EQ(real(speed, "best_read_bytes_per_s"), 0);
  EXPECT_EQ(real(speed, "achieved_of_bound"), 1);
}

// 1 GB/s; 16 reads are told of at once, or none.
TEST(BestReadRate, reads_that_end_at_once_do_not_look_fast) {
  BestReadRate rate;
  for (int i = 0; i < 1000; ++i) {
    rate.add(0, 0, 0.0155);
    rate.add(16, 16 * expert_bytes, 0.0005);
  }
  EXPECT_NEAR(rate.bytes_per_s(), 1e9, 0.01e9);
  for (int i = 0; i < 1000; ++i) {
    rate.add(16, 16 * expert_bytes, 0.0005);
    rate.add(0, 0, 0.0155);
  }
  EXPECT_NEAR(rate.bytes_per_s(), 1e9, 0.07e9);
}

TEST(BestReadRate, the_past_is_forgotten_in_minutes) {
  BestReadRate rate;
  for (int i = 0; i < 10; ++i) rate.add(256, 256 * expert_bytes, 0.1);
  EXPECT_NEAR(rate.bytes_per_s(), 2.56e9, 1);
  for (int i = 0; i < 600; ++i) rate.add(256, 256 * expert_bytes, 1);
  EXPECT_NEAR(rate.bytes_per_s(), (2.56e9 + 0.256e9) / 2, 0.01e9);
  rate.add(256, 256 * expert_bytes, 0.1);
  EXPECT_NEAR(rate.bytes_per_s(), 2.56e9, 1) << "what is better now counts at once";
}

TEST(BestReadRate, before_a_window_ends_it_is_the_rate_so_far) {
  BestReadRate rate;
  EXPECT_EQ(rate.bytes_per_s(), 0);
  rate.add(2, 2 * expert_bytes, 0.004);
  EXPECT_NEAR(rate.bytes_per_s(), 0.5e9, 1);
}

}  // namespace
}  // namespace glmd
