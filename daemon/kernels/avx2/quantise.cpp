#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"

namespace glmd::avx2 {
namespace {

uint32_t largest_magnitude_bits(const __m256* values) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    largest =
        _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(values[i]), magnitude));
  }
  return static_cast<uint32_t>(_mm_cvtsi128_si32(largest_of(largest)));
}

int32_t sum_of(__m256i lanes) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}

float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// vcvtps2dq rounds to nearest even; packing works within halves, so dwords are put in order at the
// end.
void quantise_group(const __m256* values, int8_t* codes, float* scale, int32_t* sum) {
  auto* out = reinterpret_cast<__m256i*>(codes);
  _mm256_storeu_si256(out, _mm256_setzero_si256());
  *sum = 0;
  const uint32_t largest = largest_magnitude_bits(values);
  if (largest >= 0x7f800000) {
    *scale = as_float(0x7fc00000);
    return;
  }
  *scale = as_float(largest) / 127.0f;
  if (*scale == 0.0f) return;

  const __m256 divisor = _mm256_set1_ps(*scale);
  __m256i quotients[4];
  for (int i = 0; i < 4; ++i) {
    __m256 quotient = _mm256_div_ps(values[i], divisor);
    quotient =
        _mm256_max_ps(_mm256_min_ps(quotient, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
    quotients[i] = _mm256_cvtps_epi32(quotient);
  }
  *sum = sum_of(_mm256_add_epi32(_mm256_add_epi32(quotients[0], quotients[1]),
                                 _mm256_add_epi32(quotients[2], quotients[3])));
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(quotients[0], quotients[1]),
                                            _mm256_packs_epi32(quotients[2], quotients[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(out, _mm256_permutevar8x32_epi32(packed, order));
}

}  // namespace

void quantise(const float* values, int64_t value_stride, int64_t row_count, int64_t columns,
              int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t row = 0; row < row_count; ++row) {
    const float* from = values + row * value_stride;
    for (int64_t first = 0; first < columns; first += group_columns) {
      __m256 group[4];
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t left = columns - first - 8 * i;
        group[i] = left <= 0 ? _mm256_setzero_ps() : load(from + first + 8 * i, at_most_8(left));
      }
      quantise_group(group, codes, scales, sums);
      codes += group_columns;
      ++scales;
      ++sums;
    }
  }
}

}  // namespace glmd::avx2
