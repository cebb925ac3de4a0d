// Rules of single layers that the oracles cannot show: ties, groups, angles.
#include <gtest/gtest.h>

#include <cmath>

#include "model/layers/router.h"
#include "model/rotary.h"

namespace glmd {
namespace {

TEST(Router, the_bias_steers_selection_but_not_the_weight) {
  const std::vector<float> scores = {0.9F, 0.5F, 0.4F}, bias = {0.0F, 0.0F, 0.3F};
  std::vector<Choice> choices(2);
  select_experts({.experts = 3, .chosen = 2, .scale = 2.5F}, scores, bias, choices);
  EXPECT_EQ(choices[0].expert, 0);
  EXPECT_EQ(choices[1].expert, 2);
  EXPECT_FLOAT_EQ(choices[0].weight, 2.5F * 0.9F / 1.3F);
  EXPECT_FLOAT_EQ(choices[1].weight, 2.5F * 0.4F / 1.3F);
}

TEST(Router, ties_go_to_the_lower_expert) {
  const std::vector<float> scores(6, 0.5F), bias(6, 0.0F);
  std::vector<Choice> choices(3);
  select_experts({.experts = 6, .chosen = 3}, scores, bias, choices);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(choices[i].expert, i);
}

TEST(Router, only_the_groups_with_the_best_pairs_are_kept) {
  // Group 0 has the best single expert, groups 1 and 2 the best pairs.
  const std::vector<float> scores = {0.9F, 0.1F, 0.6F, 0.6F, 0.7F, 0.7F}, bias(6, 0.0F);
  std::vector<Choice> choices(2);
  select_experts({.experts = 6, .chosen = 2, .groups = 3, .groups_kept = 2}, scores, bias, choices);
  EXPECT_EQ(choices[0].expert, 4);
  EXPECT_EQ(choices[1].expert, 5);
}

TEST(Rotary, our_sine_and_cosine_are_those_of_libm_up_to_a_million) {
  for (double angle :
       {0.0, 1e-9, 0.5, 0.785398, 1.5707963, 3.1415926, 100.25, 1048575.0, 999999.9}) {
    EXPECT_NEAR(sine_cosine(angle).sine, std::sin(angle), 1e-14) << angle;
    EXPECT_NEAR(sine_cosine(angle).cosine, std::cos(angle), 1e-14) << angle;
  }
}

}  // namespace
}  // namespace glmd
