// Weights to codes.
#include "kernels/avx512/arithmetic.h"
#include "kernels/avx512/kernels.h"
#include "kernels/vector_encode.h"

namespace glmd::avx512 {
namespace {

// Four quads: two scales with both signs.
struct Quads {
  using Bytes = __m512i;
  static constexpr int count = 4;
  __m512 v;

  static Quads all(float x) { return {_mm512_set1_ps(x)}; }
  static Quads repeat(const float* four) { return {_mm512_broadcast_f32x4(_mm_loadu_ps(four))}; }
  static Quads pairs(const float* two) {
    const __m512i places = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128 both = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(two)));
    return {_mm512_permutexvar_ps(places, _mm512_castps128_ps512(both))};
  }
  Quads odd_negative() const {
    const __m512 negative = _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
    return {_mm512_mask_mov_ps(v, 0xf0f0, negative)};
  }
  Quads operator+(const Quads& b) const { return {_mm512_add_ps(v, b.v)}; }
  Quads operator*(const Quads& b) const { return {_mm512_mul_ps(v, b.v)}; }

  // Truncated; packing clamps to 0..255.
  __m512i bins() const {
    return _mm512_cvttps_epi32(_mm512_fmadd_ps(v, _mm512_set1_ps(2.0f), _mm512_set1_ps(128.0f)));
  }
  static Bytes bytes_of(__m512i a, __m512i b, __m512i c, __m512i d) {
    return _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
  }
  // In 256 bytes: two tables of 128, told apart by the top bit.
  static Bytes look_up(const void* table, Bytes bins) {
    const __m512i* parts = static_cast<const __m512i*>(table);
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_loadu_si512(parts), bins, _mm512_loadu_si512(parts + 1));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(parts + 2), bins,
                                                  _mm512_loadu_si512(parts + 3));
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(bins), high);
  }
  template <class Search>
  static Bytes codes(Bytes bins) {
    return look_up(nearest_of<Search>().codes, bins);
  }
  template <class Search>
  static Bytes entries(Bytes bins) {
    return look_up(nearest_of<Search>().entries, bins);
  }
  // Bytes 4i..4i+3 of each quad at the top of its lanes: 2^24 times their value.
  template <int i>
  static __m512i spread(Bytes bytes) {
    constexpr char o = -1;
    const __m128i places =
        _mm_setr_epi8(o, o, o, 4 * i, o, o, o, 4 * i + 1, o, o, o, 4 * i + 2, o, o, o, 4 * i + 3);
    return _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(places));
  }
  // The product is exact, so that this rounds once, as a subtraction.
  Quads minus_entries(__m512i spread_entries) const {
    return {_mm512_fnmadd_ps(_mm512_cvtepi32_ps(spread_entries), _mm512_set1_ps(0x1p-24f), v)};
  }
  // (a + c) + (b + d) in every lane of a quad.
  Quads added_within() const {
    const __m512 two = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
    return {_mm512_add_ps(two, _mm512_permute_ps(two, 0xb1))};
  }
  // Of equals the later.
  static void keep_least(const Quads& x, const Quads& of_x, Quads& least, Quads& best) {
    const __mmask16 is_least = _mm512_cmp_ps_mask(x.v, least.v, _CMP_LE_OQ);
    least.v = _mm512_mask_mov_ps(least.v, is_least, x.v);
    best.v = _mm512_mask_mov_ps(best.v, is_least, of_x.v);
  }
  bool all_greater(const Quads& b) const {
    return _mm512_cmp_ps_mask(v, b.v, _CMP_GT_OQ) == 0xffff;
  }
  static Quads odd_ones() { return {_mm512_maskz_mov_ps(0xf0f0, _mm512_set1_ps(1.0f))}; }
  // Infinity where a and b differ.
  Quads where_equal(const Quads& a, const Quads& b) const {
    const __mmask16 is_equal = _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
    return {_mm512_mask_mov_ps(_mm512_set1_ps(__builtin_inff()), is_equal, v)};
  }
  // The least of all quads, in each.
  Quads least_across() const {
    const __m512 two = _mm512_min_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
    return {_mm512_min_ps(two, _mm512_shuffle_f32x4(two, two, 0xb1))};
  }
  float first() const { return _mm512_cvtss_f32(v); }
  static void store_first_16(uint8_t* to, Bytes bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(bytes));
  }
  static float largest_magnitude_of_32(const float* values) {
    return avx512::largest_magnitude(values, group_columns);
  }
};

}  // namespace

float largest_magnitude(const float* x, int64_t n) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  const auto take = [&](__m512 values, __m512i& into) {
    into = _mm512_max_epi32(into, _mm512_and_si512(_mm512_castps_si512(values), magnitude));
  };
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    take(_mm512_loadu_ps(x + i), largest[0]);
    take(_mm512_loadu_ps(x + i + 16), largest[1]);
  }
  for (; i < n; i += 16)
    take(_mm512_maskz_loadu_ps(first_lanes(n - i < 16 ? n - i : 16), x + i), largest[0]);
  const auto bits =
      static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(largest[0], largest[1])));
  float found;
  memcpy(&found, &bits, 4);
  return found;
}

void encode_row_nl4(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes) {
  encode_nl_row_of<Nl4Search, Quads, Lanes>(values, columns, row_scale, scales, codes);
}

void encode_row_nl5(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes) {
  encode_nl_row_of<Nl5Search, Quads, Lanes>(values, columns, row_scale, scales, codes);
}

}  // namespace glmd::avx512
