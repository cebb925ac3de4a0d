#include "generation/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "platform/check.h"
#include "platform/grown.h"
#include "platform/random.h"

namespace glmd {
namespace {

// Below it the odds of any two logits that differ are those of temperature 0.
constexpr double temperature_min = 1e-6;

Error not_finite(std::span<const float> logits) {
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float logit) { return !std::isfinite(logit); });
  return error(ErrorKind::internal, "output head: logits: id {} is {}", bad - logits.begin(), *bad);
}

}  // namespace

Sampler::Sampler(std::vector<uint8_t> is_allowed, const KernelTable& kernels)
    : is_allowed_(std::move(is_allowed)), kernels_(kernels) {
  for (size_t id = 0; id < is_allowed_.size(); ++id) {
    if (is_allowed_[id] == 0) not_allowed_.push_back(static_cast<int32_t>(id));
  }
}

Result<int32_t> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                int64_t token_index) {
  CHECK(is_allowed_.empty() || is_allowed_.size() == logits.size());
  int64_t top = kernels_.find_largest(logits.data(), static_cast<int64_t>(logits.size()));
  if (top < 0) return not_finite(logits);
  if (!may_choose(top)) top = likeliest(logits);
  if (top < 0) return error(ErrorKind::internal, "sampler: no id may be chosen");
  if (options.temperature < temperature_min || options.top_p <= 0) return static_cast<int32_t>(top);

  const double total =
      weigh(logits, logits[static_cast<size_t>(top)], static_cast<float>(1 / options.temperature));
  const double draw = unit_interval(philox_bits(options.seed, static_cast<uint64_t>(token_index)));
  if (options.top_p >= 1) return draw_from_all(draw * total);
  const Nucleus nucleus = find_nucleus(total, options.top_p);
  return draw_from(nucleus, draw * nucleus.mass);
}

// Of the allowed ids. Ties: the lowest. -1: none is allowed.
int64_t Sampler::likeliest(std::span<const float> logits) const {
  int64_t best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > best_logit && is_allowed_[id] != 0) {
      best = static_cast<int64_t>(id);
      best_logit = logits[id];
    }
  }
  return best;
}

// Fills weights_ with exp((logit - top) * scale), 0 where an id is not allowed, and returns their
// sum. An id that is not allowed may lie above `top`, even infinitely: it is put down first.
double Sampler::weigh(std::span<const float> logits, float top, float scale) {
  const auto count = static_cast<int64_t>(logits.size());
  float* weights = grown(weights_, count);
  float* sums = grown(block_sums_, (count + weigh_block - 1) / weigh_block);
  const float* values = logits.data();
  if (!not_allowed_.empty()) {
    std::copy(logits.begin(), logits.end(), weights);
    for (const int32_t id : not_allowed_) weights[id] = -std::numeric_limits<float>::infinity();
    values = weights;
  }
  kernels_.weigh(values, count, top, scale, weights, sums);
  weights_.resize(logits.size());
  double total = 0;
  for (int64_t block = 0; block * weigh_block < count; ++block) total += sums[block];
  return total;
}

// Whole blocks first; a block's own sum has another order, so the draw may run out behind its last
// id: then it is the last one.
int32_t Sampler::draw_from_all(double target) const {
  const auto count = static_cast<int64_t>(weights_.size());
  double sum = 0;
  int64_t first = 0;
  while (first + weigh_block < count && sum + block_sums_[first / weigh_block] <= target) {
    sum += block_sums_[first / weigh_block];
    first += weigh_block;
  }
  int64_t last = -1;
  for (int64_t id = first; id < std::min(count, first + weigh_block); ++id) {
    if (weights_[id] <= 0) continue;
    sum += weights_[id];
    last = id;
    if (sum > target) break;
  }
  for (int64_t id = first; last < 0; --id) {  // a block without weight
    if (weights_[id] > 0) last = id;
  }
  return static_cast<int32_t>(last);
}

// Ids that weigh less than (1 - top_p) * total / count sum up to less than (1 - top_p) * total, so
// the nucleus lies in the rest. Weights are positive floats, whose bits have their order: three
// histograms of mass, from the upper bits to the lower, find the weight at the border.
Sampler::Nucleus Sampler::find_nucleus(double total, double top_p) {
  const auto count = static_cast<int64_t>(weights_.size());
  const double weight_min = (1 - top_p) * total / static_cast<double>(count);
  const float limit =
      std::max(static_cast<float>(weight_min * (1 - 1e-6)), std::numeric_limits<float>::min());
  int32_t* places = grown(places_, count);
  heavy_ = {places,
            static_cast<size_t>(kernels_.find_at_least(weights_.data(), count, limit, places))};

  const double wanted = top_p * total;
  double mass = 0;  // of all that lie above the border
  undecided_.reserve(weights_.size());
  undecided_.assign(heavy_.begin(), heavy_.end());
  for (const int shift : {20, 10, 0}) {
    std::array<double, 2048> masses{};
    const auto bucket_of = [&](int32_t id) {
      return std::bit_cast<uint32_t>(weights_[id]) >> shift & 2047;
    };
    for (const int32_t id : undecided_) masses[bucket_of(id)] += weights_[id];
    uint32_t lowest = 0;  // with any mass: sums of another order may fall short of `wanted`
    while (masses[lowest] <= 0) ++lowest;
    uint32_t border = 2047;
    while (border > lowest && mass + masses[border] < wanted) mass += masses[border--];
    std::erase_if(undecided_, [&](int32_t id) { return bucket_of(id) != border; });
  }
  // What is left weighs the same: lower ids come first.
  Nucleus nucleus{.mass = mass,
                  .weight_min = weights_[undecided_.front()],
                  .last_of_weight_min = undecided_.front()};
  for (const int32_t id : undecided_) {
    nucleus.mass += weights_[id];
    nucleus.last_of_weight_min = id;
    if (nucleus.mass >= wanted) break;
  }
  return nucleus;
}

int32_t Sampler::draw_from(const Nucleus& nucleus, double target) const {
  double sum = 0;
  int32_t last = 0;
  for (const int32_t id : heavy_) {
    const float weight = weights_[id];
    if (weight < nucleus.weight_min) continue;
    if (weight == nucleus.weight_min && id > nucleus.last_of_weight_min) continue;
    sum += weight;
    last = id;
    if (sum > target) break;
  }
  return last;
}

}  // namespace glmd
