// Building blocks of the AVX2 kernels. Functions are static so that no symbol compiled for AVX2 can
// be picked for code that runs elsewhere.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace glmd::avx2 {

static inline void prefetch_to_second_cache(const void* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(static_cast<const char*>(from) + line, _MM_HINT_T1);
  }
}

// The 16 lanes of a float dot. What attention_tiles.h asks of a vector stands below; `n` means the
// first n of 16, zeros behind.
namespace {
struct Lanes {
  __m256 low, high;

  // 12 sums of 8 lanes in registers, beside what is multiplied.
  static constexpr int dot_vectors = 1, dot_keys = 6, add_heads = 6, add_vectors = 1;

  static inline Lanes all(float x);
  static inline Lanes load(const float* from);
  static inline Lanes load(const float* from, int64_t n);
  static inline Lanes load(const uint16_t* halves);
  static inline Lanes load(const uint16_t* halves, int64_t n);
  static inline Lanes load(const int8_t* codes);
  static inline void store(float* to, const Lanes& x);
  static inline void store(float* to, const Lanes& x, int64_t n);
  static inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c);
  static inline Lanes larger(const Lanes& a, const Lanes& b);  // a > b ? a : b
  // [heads][width] -> [width][heads, padded to 16 with zeros].
  static inline void transpose(const float* from, int64_t heads, int64_t width, float* to);
  static inline float exp(float x);
  static inline Lanes exp(const Lanes& x);
  inline Lanes operator+(const Lanes& b) const;
  inline Lanes operator-(const Lanes& b) const;
  inline Lanes operator*(const Lanes& b) const;
  inline Lanes operator/(const Lanes& b) const;
  inline Lanes negative() const;
  static inline uint32_t at_least(const Lanes& a, const Lanes& b);  // bit i: a[i] >= b[i]
  inline float sum() const;
  // The first n lanes of this, the others of `rest`.
  inline Lanes first_then(int64_t n, const Lanes& rest) const;
};
}  // namespace

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

// The largest of 8 lanes, none of which is negative.
static inline __m128i largest_of(__m256i lanes) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
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

inline Lanes Lanes::all(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Lanes Lanes::load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline Lanes Lanes::load(const float* from, int64_t n) {
  return n == 16 ? load(from) : load_16(from, n);
}
inline Lanes Lanes::load(const uint16_t* halves) {
  return load_16(reinterpret_cast<const Half*>(halves));
}
inline Lanes Lanes::load(const uint16_t* halves, int64_t n) {
  return load_16(reinterpret_cast<const Half*>(halves), n);
}
inline Lanes Lanes::load(const int8_t* codes) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}
inline void Lanes::store(float* to, const Lanes& x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
inline void Lanes::store(float* to, const Lanes& x, int64_t n) {
  if (n == 16) return store(to, x);
  avx2::store(to, x.low, n);
  if (n > 8) avx2::store(to + 8, x.high, n - 8);
}
inline Lanes Lanes::fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes Lanes::larger(const Lanes& a, const Lanes& b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes Lanes::operator+(const Lanes& b) const {
  return {_mm256_add_ps(low, b.low), _mm256_add_ps(high, b.high)};
}
inline Lanes Lanes::operator-(const Lanes& b) const {
  return {_mm256_sub_ps(low, b.low), _mm256_sub_ps(high, b.high)};
}
inline Lanes Lanes::operator*(const Lanes& b) const {
  return {_mm256_mul_ps(low, b.low), _mm256_mul_ps(high, b.high)};
}
inline Lanes Lanes::operator/(const Lanes& b) const {
  return {_mm256_div_ps(low, b.low), _mm256_div_ps(high, b.high)};
}
inline Lanes Lanes::negative() const {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(low, sign), _mm256_xor_ps(high, sign)};
}
inline uint32_t Lanes::at_least(const Lanes& a, const Lanes& b) {
  const int low_bits = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ));
  const int high_bits = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
  return static_cast<uint32_t>(low_bits | high_bits << 8);
}
inline float Lanes::sum() const {
  return sum_lanes(*this);
}
inline Lanes Lanes::first_then(int64_t n, const Lanes& rest) const {
  Lanes mixed = *this;
  keep_behind(mixed, rest, n);
  return mixed;
}
inline Lanes Lanes::exp(const Lanes& x) {
  return {exponential(x.low), exponential(x.high)};
}

// 8 rows of 8 floats, `stride` apart, to columns.
static inline void transpose_8(const float* const* rows, float* to, int64_t stride) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(rows[i]);
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

// As Lanes::transpose.
static inline void transpose_heads(const float* from, int64_t heads, int64_t width, float* to) {
  const int64_t lanes = (heads + 15) / 16 * 16;
  for (int64_t h = 0; h < lanes; h += 8) {
    const bool is_whole = h + 8 <= heads;
    const float* rows[8];
    for (int i = 0; is_whole && i < 8; ++i) rows[i] = from + (h + i) * width;
    int64_t column = 0;
    for (; is_whole && column + 8 <= width; column += 8) {
      transpose_8(rows, to + column * lanes + h, lanes);
      for (const float*& row : rows) row += 8;
    }
    for (; column < width; ++column) {
      for (int64_t i = h; i < h + 8; ++i)
        to[column * lanes + i] = i < heads ? from[i * width + column] : 0.0f;
    }
  }
}
inline void Lanes::transpose(const float* from, int64_t heads, int64_t width, float* to) {
  transpose_heads(from, heads, width, to);
}

inline float Lanes::exp(float x) {
  return exponential(x);
}

}  // namespace glmd::avx2
