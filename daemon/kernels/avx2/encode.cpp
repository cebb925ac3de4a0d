// Weights to codes.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"
#include "kernels/vector_encode.h"

namespace glmd::avx2 {
namespace {

__m256i both_halves(const int8_t* sixteen) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
}

// Two quads: one scale with both signs.
struct Quads {
  using Bytes = __m256i;
  static constexpr int count = 2;
  __m256 v;

  static Quads all(float x) { return {_mm256_set1_ps(x)}; }
  static Quads repeat(const float* four) {
    return {_mm256_broadcast_ps(reinterpret_cast<const __m128*>(four))};
  }
  static Quads pairs(const float* one) { return {_mm256_broadcast_ss(one)}; }
  Quads odd_negative() const {
    return {_mm256_xor_ps(v, _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f))};
  }
  Quads operator+(const Quads& b) const { return {_mm256_add_ps(v, b.v)}; }
  Quads operator*(const Quads& b) const { return {_mm256_mul_ps(v, b.v)}; }

  // Truncated; packing clamps to 0..255.
  __m256i bins() const {
    return _mm256_cvttps_epi32(_mm256_fmadd_ps(v, _mm256_set1_ps(2.0f), _mm256_set1_ps(128.0f)));
  }
  static Bytes bytes_of(__m256i a, __m256i b, __m256i c, __m256i d) {
    return _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  }
  template <class Search>
  static Bytes codes(Bytes bins) {
    constexpr const CellCodes& cells = cells_of<Search>();
    const __m256i low_bits = _mm256_set1_epi8(15);
    const __m256i cell = _mm256_and_si256(_mm256_srli_epi16(bins, 4), low_bits);
    const __m256i place = _mm256_and_si256(bins, low_bits);
    __m256i code = _mm256_shuffle_epi8(both_halves(cells.first), cell);
    for (int i = 0; i < cells.border_count; ++i) {
      const __m256i border = _mm256_shuffle_epi8(both_halves(cells.before_border[i]), cell);
      code = _mm256_sub_epi8(code, _mm256_cmpgt_epi8(place, border));
    }
    return code;
  }
  template <class Search>
  static Bytes entries(Bytes bins) {
    const __m256i code = codes<Search>(bins);
    if constexpr (Search::format == BlockFormat::nl4)
      return _mm256_shuffle_epi8(both_halves(nl4_table), code);
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(both_halves(nl5_table), code),
                              _mm256_shuffle_epi8(both_halves(nl5_table + 16), code),
                              _mm256_slli_epi16(code, 3));
  }
  // Bytes 4i..4i+3 of each quad at the top of its lanes: 2^24 times their value.
  template <int i>
  static __m256i spread(Bytes bytes) {
    constexpr char o = -1;
    const __m256i places = _mm256_setr_epi8(
        o, o, o, 4 * i, o, o, o, 4 * i + 1, o, o, o, 4 * i + 2, o, o, o, 4 * i + 3,  //
        o, o, o, 4 * i, o, o, o, 4 * i + 1, o, o, o, 4 * i + 2, o, o, o, 4 * i + 3);
    return _mm256_shuffle_epi8(bytes, places);
  }
  // The product is exact, so that this rounds once, as a subtraction.
  Quads minus_entries(__m256i spread_entries) const {
    return {_mm256_fnmadd_ps(_mm256_cvtepi32_ps(spread_entries), _mm256_set1_ps(0x1p-24f), v)};
  }
  // (a + c) + (b + d) in every lane of a quad.
  Quads added_within() const {
    const __m256 two = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
    return {_mm256_add_ps(two, _mm256_permute_ps(two, 0xb1))};
  }
  // Of equals the later.
  static void keep_least(const Quads& x, const Quads& of_x, Quads& least, Quads& best) {
    const __m256 is_least = _mm256_cmp_ps(x.v, least.v, _CMP_LE_OQ);
    least.v = _mm256_blendv_ps(least.v, x.v, is_least);
    best.v = _mm256_blendv_ps(best.v, of_x.v, is_least);
  }
  bool all_greater(const Quads& b) const {
    return _mm256_movemask_ps(_mm256_cmp_ps(v, b.v, _CMP_GT_OQ)) == 0xff;
  }
  static Quads odd_ones() { return {_mm256_setr_ps(0, 0, 0, 0, 1, 1, 1, 1)}; }
  // Infinity where a and b differ.
  Quads where_equal(const Quads& a, const Quads& b) const {
    const __m256 is_equal = _mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ);
    return {_mm256_blendv_ps(_mm256_set1_ps(__builtin_inff()), v, is_equal)};
  }
  // The least of all quads, in each.
  Quads least_across() const { return {_mm256_min_ps(v, _mm256_permute2f128_ps(v, v, 1))}; }
  float first() const { return _mm256_cvtss_f32(v); }
  static void store_first_16(uint8_t* to, Bytes bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
  }
  static float largest_magnitude_of_32(const float* values) {
    return avx2::largest_magnitude(values, group_columns);
  }
};

}  // namespace

float largest_magnitude(const float* x, int64_t n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const auto take = [&](__m256 values, __m256i& into) {
    into = _mm256_max_epi32(into, _mm256_and_si256(_mm256_castps_si256(values), magnitude));
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    take(load(x + i), largest[0]);
    take(load(x + i + 8), largest[1]);
  }
  for (; i < n; i += 8) take(load(x + i, at_most_8(n - i)), largest[0]);
  return _mm_cvtss_f32(_mm_castsi128_ps(largest_of(_mm256_max_epi32(largest[0], largest[1]))));
}

void encode_row_nl4(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes) {
  encode_nl_row_of<Nl4Search, Quads, Lanes>(values, columns, row_scale, scales, codes);
}

void encode_row_nl5(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes) {
  encode_nl_row_of<Nl5Search, Quads, Lanes>(values, columns, row_scale, scales, codes);
}

}  // namespace glmd::avx2
