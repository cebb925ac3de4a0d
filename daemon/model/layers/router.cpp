#include "model/layers/router.h"

#include <algorithm>
#include <limits>

namespace glmd {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// The best of `steered` in descending order, ties by lower index: each in turn is put in its place.
void keep_best(std::span<const float> steered, std::span<Choice> choices) {
  size_t count = 0;
  for (size_t expert = 0; expert < steered.size(); ++expert) {
    const float value = steered[expert];
    if (count == choices.size() && !(value > steered[choices[count - 1].expert])) continue;
    if (count < choices.size()) ++count;
    size_t place = count - 1;
    for (; place > 0 && value > steered[choices[place - 1].expert]; --place) {
      choices[place] = choices[place - 1];
    }
    choices[place].expert = static_cast<int32_t>(expert);
  }
}

// A group counts as much as its two best experts together.
float group_score(std::span<const float> members) {
  float first = -infinity, second = -infinity;
  for (const float value : members) {
    second = std::max(second, std::min(first, value));
    first = std::max(first, value);
  }
  return members.size() == 1 ? first : first + second;
}

// Ties of groups: the lower one is better.
void exclude_groups(const RouterRule& rule, std::span<float> steered, std::span<float> scores) {
  const int64_t group_size = rule.experts / rule.groups;
  for (int64_t group = 0; group < rule.groups; ++group) {
    scores[group] = group_score(steered.subspan(group * group_size, group_size));
  }
  for (int64_t group = 0; group < rule.groups; ++group) {
    int64_t better = 0;
    for (int64_t other = 0; other < rule.groups; ++other) {
      better += scores[other] > scores[group] || (scores[other] == scores[group] && other < group);
    }
    if (better < rule.groups_kept) continue;
    std::ranges::fill(steered.subspan(group * group_size, group_size), -infinity);
  }
}

}  // namespace

void select_experts(const RouterRule& rule, std::span<const float> scores,
                    std::span<const float> bias, std::span<float> scratch,
                    std::span<Choice> choices) {
  const std::span<float> steered = scratch.first(static_cast<size_t>(rule.experts));
  for (size_t i = 0; i < steered.size(); ++i) steered[i] = scores[i] + bias[i];
  if (rule.groups > 1) exclude_groups(rule, steered, scratch.subspan(steered.size()));

  const std::span<Choice> chosen = choices.first(static_cast<size_t>(rule.chosen));
  keep_best(steered, chosen);
  float sum = 0;
  for (const Choice& choice : chosen) sum += scores[choice.expert];
  for (Choice& choice : chosen) {
    choice.weight = scores[choice.expert];
    if (rule.is_normalised) choice.weight /= sum + 1e-20F;
    choice.weight *= rule.scale;
  }
}

}  // namespace glmd
