// Building blocks of the AVX-512 kernels, as avx2/arithmetic.h: static, and the same bits.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "kernels/avx2/arithmetic.h"

namespace glmd::avx512 {

static inline __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}

// As scalar/arithmetic.h, 16 at a time; the constants are its own.
static inline __m512 exponential(__m512 x) {
  const __m512 round = _mm512_set1_ps(12582912.0f);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), round);
  const __m512 n = _mm512_sub_ps(shifted, round);
  const __m512i exponent =
      _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(round));
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  __m512 y = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i other = _mm512_sub_epi32(exponent, half);
  y = _mm512_mul_ps(y, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
  y = _mm512_mul_ps(y, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(other, bias), 23)));
  const __mmask16 is_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3365447f), _CMP_LT_OQ);
  const __mmask16 is_high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(88.7228394f), _CMP_GT_OQ);
  y = _mm512_mask_mov_ps(y, is_low, _mm512_setzero_ps());
  y = _mm512_mask_mov_ps(y, is_high, _mm512_set1_ps(__builtin_inff()));
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

static inline __m512 silu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 negated = _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
  return _mm512_mul_ps(x, _mm512_div_ps(one, _mm512_add_ps(one, exponential(negated))));
}

// The 16 lanes of a float dot. `n` means the first n of 16, zeros behind.
namespace {
struct Lanes {
  __m512 v;

  // 16 sums in registers: 64 keys and 64 heads divide evenly.
  static constexpr int dot_vectors = 4, dot_keys = 6, add_heads = 6, add_vectors = 4;

  static inline Lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static inline Lanes load(const float* from, int64_t n) {
    return {_mm512_maskz_loadu_ps(first_lanes(n), from)};
  }
  static inline Lanes load(const uint16_t* halves) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)))};
  }
  static inline Lanes load(const uint16_t* halves, int64_t n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), halves))};
  }
  static inline Lanes load(const int8_t* codes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all))};
  }
  static inline void store(float* to, const Lanes& x) { _mm512_storeu_ps(to, x.v); }
  static inline void store(float* to, const Lanes& x, int64_t n) {
    _mm512_mask_storeu_ps(to, first_lanes(n), x.v);
  }
  static inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static inline Lanes larger(const Lanes& a, const Lanes& b) {  // a > b ? a : b
    return {_mm512_max_ps(a.v, b.v)};
  }
  // [heads][width] -> [width][heads, padded to 16 with zeros].
  static inline void transpose(const float* from, int64_t heads, int64_t width, float* to) {
    avx2::transpose_heads(from, heads, width, to);
  }
  static inline float exp(float x) { return avx2::exponential(x); }
  static inline Lanes exp(const Lanes& x) { return {exponential(x.v)}; }
  inline Lanes operator+(const Lanes& b) const { return {_mm512_add_ps(v, b.v)}; }
  inline Lanes operator-(const Lanes& b) const { return {_mm512_sub_ps(v, b.v)}; }
  inline Lanes operator*(const Lanes& b) const { return {_mm512_mul_ps(v, b.v)}; }
  inline Lanes operator/(const Lanes& b) const { return {_mm512_div_ps(v, b.v)}; }
  inline Lanes negative() const { return {_mm512_xor_ps(v, _mm512_set1_ps(-0.0f))}; }
  static inline uint32_t at_least(const Lanes& a, const Lanes& b) {  // bit i: a[i] >= b[i]
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
  }
  inline float sum() const {
    return avx2::sum_lanes({_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)});
  }
  // The first n lanes of this, the others of `rest`.
  inline Lanes first_then(int64_t n, const Lanes& rest) const {
    return {_mm512_mask_blend_ps(first_lanes(n), rest.v, v)};
  }
};
}  // namespace

}  // namespace glmd::avx512
