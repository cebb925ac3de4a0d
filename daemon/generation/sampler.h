// Logits to one token id. Greedy at temperature 0; else temperature, then the nucleus (top_p), then
// one draw that depends on the request's seed and the place in its text only: same seed, same text,
// whatever shares the batch. Sums run in one order in double, and exp is our own polynomial, so
// that no processor draws differently. Thread: compute.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/result.h"

namespace glmd {

struct SamplingOptions {
  double temperature = 0;
  double top_p = 1;  // the smallest set of likeliest tokens that holds this share
  uint64_t seed = 0;
};

class Sampler {
 public:
  // `is_allowed[id]`: ids the sampler may choose (a vocabulary is padded with ids that are no
  // token); empty: all.
  explicit Sampler(std::vector<uint8_t> is_allowed = {});

  // `token_index` counts the request's new tokens. NaN or infinity anywhere is an error that names
  // id and value.
  Result<int32_t> sample(std::span<const float> logits, const SamplingOptions& options,
                         int64_t token_index);

 private:
  struct Candidate {
    double weight;
    int32_t id;
  };

  bool may_choose(size_t id) const { return is_allowed_.empty() || is_allowed_[id] != 0; }
  int32_t likeliest(std::span<const float> logits) const;
  double weigh(std::span<const float> logits, float top, double temperature);
  int32_t draw_from_all(double target) const;
  int32_t draw_from_nucleus(double total, const SamplingOptions& options, double draw);

  std::vector<uint8_t> is_allowed_;
  std::vector<double> weights_;
  std::vector<Candidate> candidates_;
};

}  // namespace glmd
