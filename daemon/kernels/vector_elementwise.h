// Norms, exponentials and the passes over logits, for any vector of 16 lanes (avx2/ and avx512/
// bring theirs as `Lanes`, see attention_tiles.h). Static, so that nothing compiled for one
// instruction set is picked for another.
#pragma once

#include <stdint.h>

#include "kernels/kernel_table.h"

namespace glmd {

static inline int64_t at_most_16(int64_t n) {
  return n < 16 ? n : 16;
}

// A float dot of (x - mean) with itself; mean 0 gives the sum of squares.
template <class Lanes>
static inline float sum_of_squares(const float* x, int64_t n, float mean) {
  const Lanes means = Lanes::all(mean);
  Lanes sum = Lanes::all(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes centred = Lanes::load(x + i) - means;
    sum = Lanes::fma(centred, centred, sum);
  }
  if (i == n) return sum.sum();
  const Lanes centred = Lanes::load(x + i, n - i) - means;
  return Lanes::fma(centred, centred, sum).first_then(n - i, sum).sum();
}

template <class Lanes>
static inline float sum_of(const float* x, int64_t n) {
  Lanes sum = Lanes::all(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum = sum + Lanes::load(x + i);
  if (i == n) return sum.sum();
  return (sum + Lanes::load(x + i, n - i)).first_then(n - i, sum).sum();
}

template <class Lanes>
static inline void rms_norm_of(const float* x, const float* weight, int64_t n, float eps,
                               float* out) {
  const float mean = sum_of_squares<Lanes>(x, n, 0.0f) / static_cast<float>(n);
  const Lanes factor = Lanes::all(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t now = at_most_16(n - i);
    Lanes::store(out + i, Lanes::load(x + i, now) * factor * Lanes::load(weight + i, now), now);
  }
}

template <class Lanes>
static inline void layer_norm_of(const float* x, const float* weight, const float* bias, int64_t n,
                                 float eps, float* out) {
  const float mean = sum_of<Lanes>(x, n) / static_cast<float>(n);
  const float variance = sum_of_squares<Lanes>(x, n, mean) / static_cast<float>(n);
  const Lanes factor = Lanes::all(1.0f / __builtin_sqrtf(variance + eps));
  const Lanes means = Lanes::all(mean);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t now = at_most_16(n - i);
    const Lanes normal = (Lanes::load(x + i, now) - means) * factor;
    Lanes::store(out + i, normal * Lanes::load(weight + i, now) + Lanes::load(bias + i, now), now);
  }
}

template <class Lanes>
static inline void add_scaled_of(float* y, const float* x, float weight, int64_t n) {
  const Lanes weights = Lanes::all(weight);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t now = at_most_16(n - i);
    Lanes::store(y + i, Lanes::fma(weights, Lanes::load(x + i, now), Lanes::load(y + i, now)), now);
  }
}

template <class Lanes>
static inline void sigmoid_of(const float* x, int64_t n, float* s) {
  const Lanes one = Lanes::all(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t now = at_most_16(n - i);
    Lanes::store(s + i, one / (one + Lanes::exp(Lanes::load(x + i, now).negative())), now);
  }
}

// out[i] = exp((x[i] - max) * scale); returns their sum as a float dot with ones. Such sums are
// never -0: adding zeros behind the end changes nothing.
template <class Lanes>
static inline float exp_scaled(const float* x, int64_t n, float max, float scale, float* out) {
  const Lanes maxima = Lanes::all(max), scales = Lanes::all(scale);
  Lanes sum = Lanes::all(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes e = Lanes::exp((Lanes::load(x + i) - maxima) * scales);
    Lanes::store(out + i, e);
    sum = sum + e;
  }
  if (i == n) return sum.sum();
  const Lanes e = Lanes::exp((Lanes::load(x + i, n - i) - maxima) * scales);
  Lanes::store(out + i, e, n - i);
  return (sum + e.first_then(n - i, Lanes::all(0.0f))).sum();
}

template <class Lanes>
static inline int64_t find_largest_of(const float* x, int64_t n) {
  // Anything that is not finite makes 0 * x not zero, for good.
  const Lanes zero = Lanes::all(0.0f);
  Lanes largest = Lanes::all(-__builtin_inff()), nothing = zero;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes values = Lanes::load(x + i);
    largest = Lanes::larger(values, largest);
    nothing = Lanes::fma(values, zero, nothing);
  }
  if (i < n) {
    const Lanes values = Lanes::load(x + i, n - i);
    largest = Lanes::larger(values.first_then(n - i, largest), largest);
    nothing = Lanes::fma(values, zero, nothing);
  }
  if (nothing.sum() != 0.0f) return -1;
  float lanes[16];
  Lanes::store(lanes, largest);
  float best = lanes[0];
  for (const float lane : lanes) best = lane > best ? lane : best;
  const Lanes bests = Lanes::all(best);
  for (i = 0;; i += 16) {
    const int64_t now = at_most_16(n - i);
    const uint32_t mask = Lanes::at_least(Lanes::load(x + i, now), bests) & ((1u << now) - 1u);
    if (mask != 0) return i + __builtin_ctz(mask);
  }
}

template <class Lanes>
static inline void weigh_of(const float* x, int64_t n, float max, float scale, float* weights,
                            float* sums) {
  for (int64_t i = 0; i < n; i += weigh_block) {
    const int64_t now = n - i < weigh_block ? n - i : weigh_block;
    *sums++ = exp_scaled<Lanes>(x + i, now, max, scale, weights + i);
  }
}

template <class Lanes>
static inline int64_t find_at_least_of(const float* x, int64_t n, float limit, int32_t* places) {
  const Lanes limits = Lanes::all(limit);
  int32_t* place = places;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t now = at_most_16(n - i);
    uint32_t mask = Lanes::at_least(Lanes::load(x + i, now), limits) & ((1u << now) - 1u);
    for (; mask != 0; mask &= mask - 1) *place++ = static_cast<int32_t>(i) + __builtin_ctz(mask);
  }
  return place - places;
}

}  // namespace glmd
