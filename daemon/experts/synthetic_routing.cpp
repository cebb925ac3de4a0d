#include "experts/synthetic_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "platform/check.h"

namespace glmd {
namespace {

constexpr double precision_first = 0.93, precision_last = 0.55;

// Mean 0, variance 1: the sum of four uniform 16-bit numbers, close enough to a Gaussian for scores
// that are sums of many of them.
float normal(SplitMix& random) {
  const uint64_t bits = random.next();
  const auto sum = static_cast<int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                        (bits >> 32 & 0xFFFF) + (bits >> 48));
  constexpr float mean = 2 * 65535.0F;
  constexpr float deviation = 37837.227F;  // 65536 / sqrt(3)
  return (static_cast<float>(sum) - mean) / deviation;
}

void draw(std::vector<float>& values, SplitMix& random) {
  for (float& value : values) value = normal(random);
}

// One step of an autoregressive process that keeps mean 0 and variance 1.
void drift(std::vector<float>& values, double correlation, SplitMix& random) {
  const auto keep = static_cast<float>(correlation);
  const auto fresh = static_cast<float>(std::sqrt(1 - correlation * correlation));
  for (float& value : values) value = keep * value + fresh * normal(random);
}

uint64_t stream_seed(uint64_t seed, int64_t layer, int64_t stream) {
  return philox_bits(seed, static_cast<uint64_t>(layer) << 32 | static_cast<uint64_t>(stream));
}

// Falls from the first to the last precision so that the mean is the recall: along a power of the
// rank, found by halving.
std::vector<double> precision_by_rank(int64_t ranks, double recall) {
  std::vector<double> precision(static_cast<size_t>(ranks), recall);
  if (ranks == 1) return precision;
  double low = 0, high = 64;  // exponent: the higher, the later the fall
  for (int i = 0; i < 60; ++i) {
    const double exponent = (low + high) / 2;
    double sum = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const double place = static_cast<double>(rank) / static_cast<double>(ranks - 1);
      precision[rank] =
          precision_first - (precision_first - precision_last) * std::pow(place, exponent);
      sum += precision[rank];
    }
    (sum < recall * static_cast<double>(ranks) ? low : high) = exponent;
  }
  return precision;
}

constexpr int64_t preference_stream = 0, first_topic_stream = 1;

}  // namespace

SyntheticRouting::SyntheticRouting(const SyntheticRoutingOptions& options) : options_(options) {
  CHECK(options.layers >= 1);
  CHECK(options.topics >= 1);
  CHECK(options.experts >= 2 * options.chosen);
  CHECK(options.guess_recall >= 0.60);
  CHECK(options.guess_recall <= 0.88);
  const auto experts = static_cast<size_t>(options.experts);
  for (int64_t index = 0; index < options.layers; ++index) {
    Layer& layer = layers_.emplace_back(stream_seed(~options.text_seed, index, 0));
    layer.preference.resize(experts);
    layer.topic.resize(experts);
    layer.token.resize(experts);
    SplitMix random(stream_seed(options.seed, index, preference_stream));
    draw(layer.preference, random);
  }
  precision_ = precision_by_rank(options.chosen, options.guess_recall);
  chosen_.resize(static_cast<size_t>(options.layers * options.chosen));
  guesses_.resize(chosen_.size());
  scores_.resize(experts);
  by_score_.resize(experts);
}

void SyntheticRouting::next_token() {
  const bool begins_text =
      tokens_ == 0 || (options_.text_tokens > 0 && tokens_ % options_.text_tokens == 0);
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    if (begins_text) begin_text(layer);
    move_scores(layers_[layer]);
    choose(layer);
    guess(layer);
  }
  ++tokens_;
}

void SyntheticRouting::begin_text(int64_t index) {
  Layer& layer = layers_[index];
  const int64_t text = options_.text_tokens > 0 ? tokens_ / options_.text_tokens : 0;
  const auto topics = static_cast<uint64_t>(options_.topics);
  const auto topic =
      static_cast<int64_t>((options_.text_seed % topics + static_cast<uint64_t>(text)) % topics);
  SplitMix random(stream_seed(options_.seed, index, first_topic_stream + topic));
  draw(layer.topic, random);
  draw(layer.token, layer.random);
}

void SyntheticRouting::move_scores(Layer& layer) {
  drift(layer.topic, 1 - 1 / options_.topic_tokens, layer.random);
  if (unit_interval(layer.random.next()) < options_.renewal_share) {
    draw(layer.token, layer.random);
  } else {
    drift(layer.token, options_.token_memory, layer.random);
  }
  const auto preference_spread = static_cast<float>(options_.preference_spread);
  const auto topic_spread = static_cast<float>(options_.topic_spread);
  for (size_t expert = 0; expert < scores_.size(); ++expert) {
    scores_[expert] = preference_spread * layer.preference[expert] +
                      topic_spread * layer.topic[expert] + layer.token[expert];
  }
}

void SyntheticRouting::choose(int64_t layer) {
  std::iota(by_score_.begin(), by_score_.end(), 0);
  std::partial_sort(by_score_.begin(), by_score_.begin() + 2 * options_.chosen, by_score_.end(),
                    [this](int32_t a, int32_t b) {
                      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
                    });
  std::copy_n(by_score_.begin(), options_.chosen, chosen_.begin() + layer * options_.chosen);
}

// Right guesses are the best scores, wrong ones those that were nearly chosen.
void SyntheticRouting::guess(int64_t layer) {
  const int32_t* right = by_score_.data();
  const int32_t* wrong = right + options_.chosen;
  int32_t* guesses = guesses_.data() + layer * options_.chosen;
  for (int64_t rank = 0; rank < options_.chosen; ++rank) {
    const bool is_right = unit_interval(layers_[layer].random.next()) < precision_[rank];
    guesses[rank] = is_right ? *right++ : *wrong++;
  }
}

std::span<const int32_t> SyntheticRouting::chosen(int64_t layer) const {
  return {chosen_.data() + layer * options_.chosen, static_cast<size_t>(options_.chosen)};
}

std::span<const int32_t> SyntheticRouting::guesses(int64_t layer) const {
  return {guesses_.data() + layer * options_.chosen, static_cast<size_t>(options_.chosen)};
}

}  // namespace glmd
