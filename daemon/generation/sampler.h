// Logits to one token id. Greedy at temperature 0; else temperature, then the nucleus (top_p), then
// one draw that depends on the request's seed and the place in its text only: same seed, same text,
// whatever shares the batch. Every sum has one order, and exp is our own polynomial, so that no
// processor draws differently. Thread: compute.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
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
  explicit Sampler(std::vector<uint8_t> is_allowed = {},
                   const KernelTable& kernels = *find_kernels("auto"));

  // `token_index` counts the request's new tokens. NaN or infinity anywhere is an error that names
  // id and value.
  Result<int32_t> sample(std::span<const float> logits, const SamplingOptions& options,
                         int64_t token_index);

 private:
  // The ids that a draw may fall on, ascending: those above a weight, and of those that have just
  // this weight the lower ones.
  struct Nucleus {
    double mass;
    float weight_min;
    int32_t last_of_weight_min;
  };

  bool may_choose(int64_t id) const {
    return is_allowed_.empty() || is_allowed_[static_cast<size_t>(id)] != 0;
  }
  int64_t likeliest(std::span<const float> logits) const;
  double weigh(std::span<const float> logits, float top, float scale);
  int32_t draw_from_all(double target) const;
  Nucleus find_nucleus(double total, double top_p);
  int32_t draw_from(const Nucleus& nucleus, double target) const;

  std::vector<uint8_t> is_allowed_;
  std::vector<int32_t> not_allowed_;
  const KernelTable& kernels_;
  std::vector<float> weights_;      // of every id
  std::vector<float> block_sums_;   // of each weigh_block of them
  std::vector<int32_t> places_;     // as many as there are ids
  std::span<const int32_t> heavy_;  // in places_: ids among which the nucleus is, ascending
  std::vector<int32_t> undecided_;  // of those, where its border may be
};

}  // namespace glmd
