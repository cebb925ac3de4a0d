// Weights to codes: the search of nl4 and nl5, the rounding of q8.
#include <bit>

#include "kernels/half.h"
#include "kernels/scalar/kernels.h"
#include "kernels/scale_search.h"

namespace glmd::scalar {
namespace {

// Rounds to nearest even for |value| < 2^22.
int round_to_int(float value) {
  return static_cast<int>((value + 12582912.0f) - 12582912.0f);
}

int bin_of(float value, float bins_per_unit) {
  const float bin = value * bins_per_unit + 128.0f;
  return static_cast<int>(bin < 0.0f ? 0.0f : bin > 255.0f ? 255.0f : bin);
}

// In units of the scale squared. Four sums, so that additions need not wait for each other.
float squared_error(const NearestEntry& nearest, const float* values, int64_t n,
                    float inverse_scale) {
  const float bins_per_unit = 2.0f * inverse_scale;
  float sums[4] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float entry = nearest.entries[bin_of(values[i], bins_per_unit)];
    const float off = values[i] * inverse_scale - entry;
    sums[i % 4] += off * off;
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// +-m, the scale of the group in units of the row's.
template <class Search>
int search_group_scale(const float* values, int64_t n, float row_scale) {
  const float amax = largest_magnitude(values, n);
  if (row_scale == 0.0f || amax == 0.0f) return 0;
  int best = 0, tried = 0;
  float least = 0.0f;
  for (int i = 0; i < Search::factor_count; ++i) {
    const float factor = factors_of<Search>()[i];
    const int wanted = round_to_int(amax * factor / (largest_entry * row_scale));
    const int magnitude = wanted < 1 ? 1 : wanted > 127 ? 127 : wanted;
    if (magnitude == tried) continue;
    tried = magnitude;
    const auto units = static_cast<float>(magnitude);
    const float inverse_scale = 1.0f / (row_scale * units);
    for (int sign = 1; sign >= -1; sign -= 2) {
      const float error = squared_error(nearest_of<Search>(), values, n,
                                        sign > 0 ? inverse_scale : -inverse_scale) *
                          (units * units);
      if (best != 0 && error >= least) continue;
      least = error;
      best = sign * magnitude;
    }
  }
  return best;
}

template <class Search>
uint16_t encode_nl_group(const float* values, int64_t n, float row_scale, uint8_t* codes) {
  const int units = search_group_scale<Search>(values, n, row_scale);
  if (units == 0) return 0;
  const float magnitude = 1.0f / (row_scale * static_cast<float>(units < 0 ? -units : units));
  const float bins_per_unit = 2.0f * (units < 0 ? -magnitude : magnitude);
  for (int64_t i = 0; i < n; ++i)
    codes[i] = nearest_of<Search>().codes[bin_of(values[i], bins_per_unit)];
  return static_cast<uint16_t>(units < 0 ? 128 - units : units);
}

uint16_t encode_q8_group(const float* values, int64_t n, float, uint8_t* codes) {
  const float wanted = largest_magnitude(values, n) / 127.0f;
  const uint16_t half = f32_to_f16(wanted < 65504.0f ? wanted : 65504.0f);
  const float scale = f16_to_f32(half);
  if (scale == 0.0f) return half;
  for (int64_t i = 0; i < n; ++i) {
    const float code = values[i] / scale;  // the rounded scale may be a little small
    codes[i] = static_cast<uint8_t>(round_to_int(code > 127.0f    ? 127.0f
                                                 : code < -127.0f ? -127.0f
                                                                  : code));
  }
  return half;
}

template <class EncodeGroup>
void encode_groups(EncodeGroup encode_group, const float* values, int64_t columns, float row_scale,
                   uint16_t* scales, uint8_t* codes) {
  for (int64_t first = 0; first < columns; first += group_columns) {
    const int64_t n = columns - first < group_columns ? columns - first : group_columns;
    for (int64_t i = 0; i < group_columns; ++i) codes[first + i] = 0;
    scales[first / group_columns] = encode_group(values + first, n, row_scale, codes + first);
  }
}

}  // namespace

// Integers order as the magnitudes do, with infinity and NaN on top.
float largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffff;
    if (magnitude > largest) largest = magnitude;
  }
  return std::bit_cast<float>(largest);
}

void encode_row_q8(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                   uint8_t* codes) {
  encode_groups(encode_q8_group, values, columns, row_scale, scales, codes);
}

void encode_row_nl5(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes) {
  encode_groups(encode_nl_group<Nl5Search>, values, columns, row_scale, scales, codes);
}

void encode_row_nl4(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes) {
  encode_groups(encode_nl_group<Nl4Search>, values, columns, row_scale, scales, codes);
}

}  // namespace glmd::scalar
