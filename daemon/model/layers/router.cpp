#include "model/layers/router.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace glmd {
namespace {

// The `count` best of `values` in descending order, ties by lower index.
std::vector<int32_t> best(std::span<const float> values, int64_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

// A group counts as much as its two best experts together.
void exclude_groups(const RouterRule& rule, std::span<float> steered) {
  const int64_t group_size = rule.experts / rule.groups;
  std::vector<float> group_scores;
  for (int64_t group = 0; group < rule.groups; ++group) {
    const std::span<const float> members = steered.subspan(group * group_size, group_size);
    float sum = 0;
    for (const int32_t member : best(members, std::min<int64_t>(2, group_size))) {
      sum += members[member];
    }
    group_scores.push_back(sum);
  }
  std::vector<bool> is_kept(static_cast<size_t>(rule.groups));
  for (const int32_t group : best(group_scores, rule.groups_kept)) is_kept[group] = true;
  for (int64_t expert = 0; expert < rule.experts; ++expert) {
    if (!is_kept[expert / group_size]) steered[expert] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void select_experts(const RouterRule& rule, std::span<const float> scores,
                    std::span<const float> bias, std::span<Choice> choices) {
  std::vector<float> steered(scores.begin(), scores.end());
  for (size_t i = 0; i < steered.size(); ++i) steered[i] += bias[i];
  if (rule.groups > 1) exclude_groups(rule, steered);

  float sum = 0;
  const std::vector<int32_t> chosen = best(steered, rule.chosen);
  for (const int32_t expert : chosen) sum += scores[expert];
  for (size_t i = 0; i < chosen.size(); ++i) {
    float weight = scores[chosen[i]];
    if (rule.is_normalised) weight /= sum + 1e-20F;
    choices[i] = {chosen[i], weight * rule.scale};
  }
}

}  // namespace glmd
