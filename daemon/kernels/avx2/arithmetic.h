// Building blocks of the AVX2 kernels. Functions are static so that no symbol compiled for AVX2 can
// be picked for code that runs elsewhere.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace glmd::avx2 {

// The 16 lanes of a float dot.
struct Lanes {
  __m256 low, high;
};

// All bits set in the first `n` of 8 lanes.
static inline __m256i first_lanes(int64_t n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
}

// 8 elements; and the first n of 8, zeros behind.
static inline __m256 load(const float* from) {
  return _mm256_loadu_ps(from);
}
static inline __m256 load(const float* from, int64_t n) {
  return _mm256_maskload_ps(from, first_lanes(n));
}

static inline void store(float* to, __m256 value, int64_t n) {
  _mm256_maskstore_ps(to, first_lanes(n), value);
}

struct Half {  // f16 in memory
  uint16_t bits;
};
static inline __m256 load(const Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

struct Brain {  // bf16 in memory
  uint16_t bits;
};
static inline __m256 load(const Brain* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

template <class Element>
static inline __m256 load(const Element* from, int64_t n) {
  Element padded[8] = {};
  for (int64_t i = 0; i < n && i < 8; ++i) padded[i] = from[i];
  return load(padded);
}

static inline int64_t at_most_8(int64_t n) {
  return n < 8 ? n : 8;
}

template <class Element>
static inline Lanes load_16(const Element* from) {
  return {load(from), load(from + 8)};
}
template <class Element>
static inline Lanes load_16(const Element* from, int64_t n) {
  if (n <= 8) return {load(from, n), _mm256_setzero_ps()};
  return {load(from), load(from + 8, n - 8)};
}

static inline void multiply_add(Lanes& sum, const Lanes& a, const Lanes& b) {
  sum.low = _mm256_fmadd_ps(a.low, b.low, sum.low);
  sum.high = _mm256_fmadd_ps(a.high, b.high, sum.high);
}

// Lanes from n on keep their value: adding a product of zeros could turn -0 into +0.
static inline void keep_behind(Lanes& sum, const Lanes& before, int64_t n) {
  sum.low = _mm256_blendv_ps(before.low, sum.low, _mm256_castsi256_ps(first_lanes(at_most_8(n))));
  sum.high = _mm256_blendv_ps(before.high, sum.high, _mm256_castsi256_ps(first_lanes(n - 8)));
}

static inline Lanes zero_lanes() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline float sum_lanes(const Lanes& lanes) {
  const __m256 eight = _mm256_add_ps(lanes.low, lanes.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// As scalar/arithmetic.h, 8 at a time; the constants are its own.
static inline __m256 exponential(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.3365447f), highest = _mm256_set1_ps(88.7228394f);
  const __m256 round = _mm256_set1_ps(12582912.0f);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), round);
  const __m256 n = _mm256_sub_ps(shifted, round);
  const __m256i exponent =
      _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(round));
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  __m256 y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i other = _mm256_sub_epi32(exponent, half);
  y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
  y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(other, bias), 23)));
  y = _mm256_blendv_ps(y, _mm256_setzero_ps(), _mm256_cmp_ps(x, lowest, _CMP_LT_OQ));
  y = _mm256_blendv_ps(y, _mm256_set1_ps(__builtin_inff()), _mm256_cmp_ps(x, highest, _CMP_GT_OQ));
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline __m256 sigmoid(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = exponential(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
  return _mm256_div_ps(one, _mm256_add_ps(one, e));
}

static inline __m256 silu(__m256 x) {
  return _mm256_mul_ps(x, sigmoid(x));
}

static inline float exponential(float x) {
  return _mm256_cvtss_f32(exponential(_mm256_set1_ps(x)));
}

// x[i] = exp(x[i] - max) and their sum, for any n.
static inline float exp_and_sum_of(float* x, int64_t n, float max) {
  const __m256 maxima = _mm256_set1_ps(max);
  Lanes sum = zero_lanes();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 low = exponential(_mm256_sub_ps(load(x + i), maxima));
    const __m256 high = exponential(_mm256_sub_ps(load(x + i + 8), maxima));
    _mm256_storeu_ps(x + i, low);
    _mm256_storeu_ps(x + i + 8, high);
    sum = {_mm256_add_ps(sum.low, low), _mm256_add_ps(sum.high, high)};
  }
  if (i < n) {  // sums of exponentials are never -0: adding zeros changes nothing
    const int64_t rest = n - i, rest_high = rest > 8 ? rest - 8 : 0;
    const Lanes old = load_16(x + i, rest);
    const __m256 low = exponential(_mm256_sub_ps(old.low, maxima));
    const __m256 high = exponential(_mm256_sub_ps(old.high, maxima));
    store(x + i, low, rest);
    if (rest_high > 0) store(x + i + 8, high, rest_high);
    sum.low = _mm256_add_ps(sum.low, _mm256_and_ps(low, _mm256_castsi256_ps(first_lanes(rest))));
    sum.high =
        _mm256_add_ps(sum.high, _mm256_and_ps(high, _mm256_castsi256_ps(first_lanes(rest_high))));
  }
  return sum_lanes(sum);
}

}  // namespace glmd::avx2
