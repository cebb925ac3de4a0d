// Which experts a token goes to and with what weight (GLM52 3.6): sigmoid scores, a bias that only
// steers selection, groups of experts of which the best are kept.
#pragma once

#include <cstdint>
#include <span>

#include "platform/result.h"

namespace glmd {

struct RouterRule {
  int64_t experts = 0, chosen = 0;
  int64_t groups = 1, groups_kept = 1;
  bool is_normalised = true;
  float scale = 1;
};

struct Choice {
  int32_t expert;
  float weight;
};

// Floats that select_experts needs as scratch.
constexpr int64_t router_scratch_floats(const RouterRule& rule) {
  return rule.experts + rule.groups;
}

// `scores` are after the sigmoid. Fills `choices` (rule.chosen of them) in descending score + bias,
// ties by lower id: the order in which expert outputs are added.
void select_experts(const RouterRule& rule, std::span<const float> scores,
                    std::span<const float> bias, std::span<float> scratch,
                    std::span<Choice> choices);

}  // namespace glmd
