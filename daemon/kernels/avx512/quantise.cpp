#include "kernels/avx512/arithmetic.h"
#include "kernels/avx512/kernels.h"

namespace glmd::avx512 {
namespace {

float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void quantise_group(const __m512 (&values)[2], int8_t* codes, float* scale, int32_t* sum) {
  auto* out = reinterpret_cast<__m128i*>(codes);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const auto largest = static_cast<uint32_t>(_mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(values[0]), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(values[1]), magnitude))));
  const bool is_finite = largest < 0x7f800000;
  *scale = is_finite ? as_float(largest) / 127.0f : as_float(0x7fc00000);
  if (!is_finite || *scale == 0.0f) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_setzero_si256());
    *sum = 0;
    return;
  }
  const __m512 divisor = _mm512_set1_ps(*scale);
  __m512i quotients[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 quotient =
        _mm512_min_ps(_mm512_div_ps(values[i], divisor), _mm512_set1_ps(127.0f));
    quotients[i] = _mm512_cvtps_epi32(_mm512_max_ps(quotient, _mm512_set1_ps(-127.0f)));
    _mm_storeu_si128(out + i, _mm512_cvtepi32_epi8(quotients[i]));
  }
  *sum = _mm512_reduce_add_epi32(_mm512_add_epi32(quotients[0], quotients[1]));
}

__m512 load_at_most(const float* from, int64_t n) {
  if (n >= 16) return _mm512_loadu_ps(from);
  return n <= 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(first_lanes(n), from);
}

}  // namespace

void quantise(const float* values, int64_t value_stride, int64_t row_count, int64_t columns,
              int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t row = 0; row < row_count; ++row) {
    const float* from = values + row * value_stride;
    for (int64_t first = 0; first < columns; first += group_columns) {
      const int64_t left = columns - first;
      const __m512 group[2] = {load_at_most(from + first, left),
                               load_at_most(from + first + 16, left - 16)};
      quantise_group(group, codes, scales, sums);
      codes += group_columns;
      ++scales;
      ++sums;
    }
  }
}

}  // namespace glmd::avx512
