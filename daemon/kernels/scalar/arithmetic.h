// The definition of what every table must reproduce bit for bit: the float dot, exp, and what rests
// on them. Every fused multiply-add is written as such; nothing else is fused.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/half.h"

namespace glmd::scalar {

constexpr int dot_lanes = 16;

// Adds lanes 8 apart, 4 apart, 2 apart, 1 apart.
inline float sum_lanes(float* lanes) {
  for (int apart = dot_lanes / 2; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  }
  return lanes[0];
}

inline float load(const float* from) {
  return *from;
}

struct Half {  // f16 in memory
  uint16_t bits;
};
inline float load(const Half* from) {
  return f16_to_f32(from->bits);
}

struct Brain {  // bf16 in memory
  uint16_t bits;
};
inline float load(const Brain* from) {
  return bf16_to_f32(from->bits);
}

// Element i in lane i mod 16, ascending. Weight comes first, activation second.
template <class Element>
float float_dot(const Element* weights, const float* x, int64_t n) {
  float lanes[dot_lanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    float& lane = lanes[i % dot_lanes];
    lane = std::fma(load(weights + i), x[i], lane);
  }
  return sum_lanes(lanes);
}

constexpr float exp_lowest = -87.3365447f;  // below: 0; results are never subnormal
constexpr float exp_highest = 88.7228394f;  // above: infinity
constexpr float exp_round =
    12582912.0f;  // 1.5 x 2^23: adding it leaves the nearest integer in the low bits
constexpr float exp_log2_e = 1.44269504f;
constexpr float exp_ln2_high = 0.693359375f;
constexpr float exp_ln2_low = -2.12194440e-4f;
constexpr float exp_polynomial[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

// 2^exponent for -127 < exponent < 128.
inline float power_of_two(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// exp(x) = 2^n exp(r), n the integer nearest to x / ln 2 and |r| <= ln 2 / 2. Within 2 units in the
// last place. 2^n is applied in two halves, since n = 128 has no float of its own.
inline float exponential(float x) {
  if (std::isnan(x)) return x;
  if (x < exp_lowest) return 0.0f;
  if (x > exp_highest) return std::bit_cast<float>(0x7f800000u);
  const float shifted = std::fma(x, exp_log2_e, exp_round);
  const float n = shifted - exp_round;
  const int32_t exponent =
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(exp_round));
  float r = std::fma(n, -exp_ln2_high, x);
  r = std::fma(n, -exp_ln2_low, r);
  float p = exp_polynomial[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, exp_polynomial[i]);
  const float y = std::fma(p, r * r, r) + 1.0f;
  const int32_t half = exponent >> 1;
  return y * power_of_two(half) * power_of_two(exponent - half);
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + exponential(-x));
}
inline float silu(float x) {
  return x * sigmoid(x);
}

}  // namespace glmd::scalar
