#include "generation/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "platform/check.h"
#include "platform/random.h"

namespace glmd {

Sampler::Sampler(std::vector<uint8_t> is_allowed) : is_allowed_(std::move(is_allowed)) {}

namespace {

Result<void> check_finite(std::span<const float> logits) {
  bool is_finite = true;
  for (const float logit : logits) {
    is_finite &= std::abs(logit) <= std::numeric_limits<float>::max();
  }
  if (is_finite) return {};
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float logit) { return !std::isfinite(logit); });
  return error(ErrorKind::internal, "output head: logits: id {} is {}", bad - logits.begin(), *bad);
}

// e^x for x <= 0: 2^n times a Taylor polynomial on |r| <= ln 2 / 2; the last term is below 2^-52.
double exp_of_negative(double x) {
  if (!(x > -700)) return 0;
  const double n = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  double sum = 1.0 / 6227020800;
  for (const double factorial :
       {479001600., 39916800., 3628800., 362880., 40320., 5040., 720., 120., 24., 6., 2., 1., 1.}) {
    sum = sum * r + 1.0 / factorial;
  }
  const uint64_t exponent = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  return sum * std::bit_cast<double>(exponent);
}

}  // namespace

Result<int32_t> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                int64_t token_index) {
  CHECK(is_allowed_.empty() || is_allowed_.size() == logits.size());
  TRY(check_finite(logits));
  const int32_t top = likeliest(logits);
  if (top < 0) return error(ErrorKind::internal, "sampler: no id may be chosen");
  if (options.temperature <= 0 || options.top_p <= 0) return top;
  const double total = weigh(logits, logits[static_cast<size_t>(top)], options.temperature);
  const double draw = unit_interval(philox_bits(options.seed, static_cast<uint64_t>(token_index)));
  if (options.top_p >= 1) return draw_from_all(draw * total);
  return draw_from_nucleus(total, options, draw);
}

// Ties: the lowest id. -1: none is allowed.
int32_t Sampler::likeliest(std::span<const float> logits) const {
  int32_t best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > best_logit && may_choose(id)) {
      best = static_cast<int32_t>(id);
      best_logit = logits[id];
    }
  }
  return best;
}

// Fills weights_ with exp((logit - top) / temperature) and returns their sum, in the order of ids.
double Sampler::weigh(std::span<const float> logits, float top, double temperature) {
  weights_.resize(logits.size());
  double total = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double distance = static_cast<double>(logits[id]) - static_cast<double>(top);
    weights_[id] = may_choose(id) ? exp_of_negative(distance / temperature) : 0.0;
    total += weights_[id];
  }
  return total;
}

int32_t Sampler::draw_from_all(double target) const {
  double sum = 0;
  int32_t last = 0;
  for (size_t id = 0; id < weights_.size(); ++id) {
    if (weights_[id] <= 0) continue;
    sum += weights_[id];
    last = static_cast<int32_t>(id);
    if (sum > target) break;
  }
  return last;
}

// Ids that weigh less than (1 - top_p) * total / count sum up to less than (1 - top_p) * total, so
// the nucleus lies in the rest: few enough for a heap, from which only the nucleus itself is taken
// in order.
int32_t Sampler::draw_from_nucleus(double total, const SamplingOptions& options, double draw) {
  const double weight_min = (1 - options.top_p) * total / static_cast<double>(weights_.size());
  candidates_.clear();
  for (size_t id = 0; id < weights_.size(); ++id) {
    if (weights_[id] >= weight_min && weights_[id] > 0) {
      candidates_.push_back({weights_[id], static_cast<int32_t>(id)});
    }
  }
  const auto comes_later = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), comes_later);
  auto nucleus = candidates_.end();  // [nucleus, end) is the nucleus, likeliest last
  double mass = 0;
  while (nucleus != candidates_.begin() && mass < options.top_p * total) {
    std::pop_heap(candidates_.begin(), nucleus, comes_later);
    --nucleus;
    mass += nucleus->weight;
  }
  double sum = 0;
  const double target = draw * mass;
  for (auto candidate = candidates_.end(); candidate != nucleus;) {
    --candidate;
    sum += candidate->weight;
    if (sum > target) return candidate->id;
  }
  return nucleus->id;
}

}  // namespace glmd
