#include "generation/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace glmd {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(Sampler, greedy_takes_the_lowest_of_equal_ids) {
  Sampler sampler;
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, {}, 0).value(), 1);
}

TEST(Sampler, an_id_without_a_token_is_never_chosen) {
  Sampler sampler({1, 0, 1});
  const std::vector<float> logits = {1, 50, 2};
  EXPECT_EQ(sampler.sample(logits, {}, 0).value(), 2);
  for (int64_t index = 0; index < 1000; ++index) {
    EXPECT_NE(sampler.sample(logits, {.temperature = 2, .seed = 9}, index).value(), 1);
  }
}

TEST(Sampler, what_is_not_finite_is_an_error_that_names_it) {
  Sampler sampler;
  for (const float bad : {std::nanf(""), infinity, -infinity}) {
    const auto token = sampler.sample(std::vector<float>{1, 2, bad, 0}, {.temperature = 1}, 0);
    ASSERT_FALSE(token.ok());
    EXPECT_NE(token.error().message.find("id 2"), std::string::npos) << token.error().message;
  }
}

TEST(Sampler, draws_follow_the_softmax) {
  Sampler sampler;
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};
  std::vector<int> counts(3);
  for (int64_t index = 0; index < 80000; ++index) {
    ++counts[static_cast<size_t>(
        sampler.sample(logits, {.temperature = 1, .seed = 3}, index).value())];
  }
  EXPECT_NEAR(counts[0], 10000, 400);
  EXPECT_NEAR(counts[1], 20000, 500);
  EXPECT_NEAR(counts[2], 50000, 600);
}

TEST(Sampler, temperature_squares_the_odds_at_one_half) {
  Sampler sampler;
  const std::vector<float> logits = {0, std::log(3.0f)};
  int second = 0;
  for (int64_t index = 0; index < 50000; ++index) {
    second += sampler.sample(logits, {.temperature = 0.5, .seed = 4}, index).value();
  }
  EXPECT_NEAR(second, 45000, 400);
}

TEST(Sampler, the_nucleus_is_the_smallest_set_that_holds_top_p) {
  Sampler sampler;
  std::vector<float> logits(1000, -3.0f);  // 0.5, 0.3, 0.2 of the mass less a small tail
  logits[700] = std::log(5000.0f);
  logits[20] = std::log(3000.0f);
  logits[500] = std::log(2000.0f);
  std::vector<int> counts(1000);
  for (int64_t index = 0; index < 20000; ++index) {
    const SamplingOptions options = {.temperature = 1, .top_p = 0.7, .seed = 5};
    ++counts[static_cast<size_t>(sampler.sample(logits, options, index).value())];
  }
  EXPECT_NEAR(counts[700], 12500, 400);
  EXPECT_EQ(counts[700] + counts[20], 20000);
  EXPECT_EQ(sampler.sample(logits, {.temperature = 1, .top_p = 1e-9, .seed = 1}, 0).value(), 700);
}

TEST(Sampler, a_flat_distribution_of_a_whole_vocabulary_is_drawn_from_evenly) {
  Sampler sampler;
  const std::vector<float> logits(154880, 1.0f);
  int64_t sum = 0;
  for (int64_t index = 0; index < 50; ++index) {
    const SamplingOptions options = {.temperature = 1, .top_p = 0.5, .seed = 6};
    const int32_t id = sampler.sample(logits, options, index).value();
    EXPECT_LT(id, 77441);  // of equal weights the lower ids come first
    sum += id;
  }
  EXPECT_NEAR(static_cast<double>(sum) / 50, 38720, 12000);
}

TEST(Sampler, every_kernel_table_draws_the_same) {
  std::vector<float> logits(5000);
  for (size_t id = 0; id < logits.size(); ++id) {
    logits[id] = static_cast<float>(id * 2654435761U % 1000) * 0.01f;
  }
  std::vector<uint8_t> is_allowed(logits.size(), 1);
  is_allowed[7] = is_allowed[4999] = 0;
  Sampler reference(is_allowed, scalar_kernels());
  for (const char* name : {"avx2", "avx512"}) {
    if (find_kernels(name) == nullptr) continue;
    Sampler sampler(is_allowed, *find_kernels(name));
    for (int64_t index = 0; index < 300; ++index) {
      for (const double top_p : {1.0, 0.9, 0.2}) {
        const SamplingOptions options = {.temperature = 1.3, .top_p = top_p, .seed = 8};
        EXPECT_EQ(sampler.sample(logits, options, index).value(),
                  reference.sample(logits, options, index).value());
      }
    }
  }
}

TEST(Sampler, a_draw_depends_on_seed_and_index_only) {
  Sampler used;
  Sampler fresh;
  std::vector<float> logits;
  for (int id = 0; id < 200; ++id) logits.push_back(static_cast<float>(id % 7));
  const SamplingOptions options = {.temperature = 1, .top_p = 0.9, .seed = 77};
  std::vector<int32_t> forward;
  for (int64_t index = 0; index < 50; ++index) {
    forward.push_back(used.sample(logits, options, index).value());
  }
  for (int64_t index = 49; index >= 0; --index) {
    EXPECT_EQ(fresh.sample(logits, options, index).value(), forward[static_cast<size_t>(index)]);
  }
}

}  // namespace
}  // namespace glmd
