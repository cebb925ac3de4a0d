// Which experts a token goes to and with what weight (DeepSeek-V3, arXiv 2412.19437, 2.1.2):
// sigmoid scores, a bias that only steers selection, groups of experts of which the best are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

// `scores` are after the sigmoid. Fills `choices` (rule.chosen of them) in descending score + bias,
// ties by lower id: the order in which expert outputs are added.
void select_experts(const RouterRule& rule, std::span<const float> scores,
                    std::span<const float> bias, std::span<Choice> choices);

// Stands in for the routers of weights that do not route like trained ones; for benches. Thread:
// compute.
class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  // Replaces the experts of the token at `position` in `layer`; their weights stay.
  virtual void choose(int64_t layer, int64_t position, std::span<Choice> choices) = 0;
  // The same for what the layer before it guesses.
  virtual void guess(int64_t layer, int64_t position, std::span<Choice> choices) = 0;
};

}  // namespace glmd
