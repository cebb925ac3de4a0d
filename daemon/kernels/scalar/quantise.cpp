#include <cstring>

#include "kernels/scalar/arithmetic.h"
#include "kernels/scalar/kernels.h"

namespace glmd::scalar {
namespace {

// Adding 1.5 x 2^23 rounds to nearest even. The clamp only matters where amax is so small that the
// scale is subnormal and coarse.
int8_t nearest_code(float value, float scale) {
  const float quotient = value / scale;
  const float clamped = quotient > 127.0f ? 127.0f : quotient < -127.0f ? -127.0f : quotient;
  return static_cast<int8_t>((clamped + exp_round) - exp_round);
}

void quantise_group(const float* values, int64_t n, int8_t* codes, float* scale, int32_t* sum) {
  memset(codes, 0, group_columns);
  *sum = 0;
  const auto largest = std::bit_cast<uint32_t>(largest_magnitude(values, n));
  if (largest >=
      0x7f800000) {  // infinity or NaN: the dot becomes NaN, which the caller finds at the end
    *scale = std::bit_cast<float>(0x7fc00000u);
    return;
  }
  *scale = std::bit_cast<float>(largest) / 127.0f;
  if (*scale == 0.0f) return;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = nearest_code(values[i], *scale);
    *sum += codes[i];
  }
}

}  // namespace

void quantise(const float* values, int64_t value_stride, int64_t row_count, int64_t columns,
              int8_t* codes, float* scales, int32_t* sums) {
  const int64_t groups = padded_columns(columns) / group_columns;
  for (int64_t row = 0; row < row_count; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = group * group_columns;
      const int64_t n = columns - first < group_columns ? columns - first : group_columns;
      const int64_t index = row * groups + group;
      quantise_group(values + row * value_stride + first, n, codes + index * group_columns,
                     scales + index, sums + index);
    }
  }
}

}  // namespace glmd::scalar
