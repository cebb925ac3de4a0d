// 16-bit floats in software, with the bits that F16C gives: round to nearest even, subnormals kept,
// NaN made quiet with the upper bits of its payload.
#pragma once

#include <bit>
#include <cstdint>

namespace glmd {

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t mantissa = half & 1023;
  if (exponent == 31) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x00400000u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | mantissa << 13);
  }
  if (exponent == 0) {  // zero or subnormal: mantissa x 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  }
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and more
  if (magnitude < 0x38800000) {  // below the smallest normal: adding 0.5 rounds to units of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  // Rounding may carry into the exponent, up to infinity: that is what it should do.
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float bf16_to_f32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace glmd
