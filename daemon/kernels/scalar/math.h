// exp and f16 as one sequence of IEEE operations: every table repeats it, so that all have the same bits.
#pragma once

#include <stdint.h>

#include <bit>
#include <cmath>

namespace glmd::scalar {

// exp(x) for x <= 88; 0 below -87. Relative error under 2e-7.
inline float exp_f32(float x) {
  constexpr float log2_e = 1.44269504F, ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  if (x < -87.0F) return 0.0F;
  if (x > 88.0F) x = 88.0F;
  const float n = std::nearbyintf(x * log2_e);
  float r = std::fmaf(n, -ln2_high, x);
  r = std::fmaf(n, -ln2_low, r);
  float p = 1.98412698e-4F;  // 1/7!
  p = std::fmaf(p, r, 1.38888889e-3F);
  p = std::fmaf(p, r, 8.33333333e-3F);
  p = std::fmaf(p, r, 4.16666667e-2F);
  p = std::fmaf(p, r, 1.66666667e-1F);
  p = std::fmaf(p, r, 0.5F);
  p = std::fmaf(p, r, 1.0F);
  p = std::fmaf(p, r, 1.0F);
  const auto power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return p * power;
}

inline float sigmoid_f32(float x) { return 1.0F / (1.0F + exp_f32(-x)); }
inline float silu_f32(float x) { return x * sigmoid_f32(x); }

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 31U, mantissa = half & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Round to nearest even; overflow becomes infinity, as vcvtps2ph does.
inline uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {  // subnormal or zero: count units of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyintf(units)));
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

inline float bf16_to_f32(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

}  // namespace glmd::scalar
