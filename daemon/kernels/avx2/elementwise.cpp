// Norms, rotation, exponentials and conversions of one vector.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"

namespace glmd::avx2 {
namespace {

// Lanes of the sum of (x - mean)^2; mean 0 gives the sum of squares.
float sum_of_squares(const float* x, int64_t n, float mean) {
  const __m256 means = _mm256_set1_ps(mean);
  Lanes sum = zero_lanes();
  for (int64_t i = 0; i < n; i += 16) {
    const bool is_whole = i + 16 <= n;
    Lanes values = is_whole ? load_16(x + i) : load_16(x + i, n - i);
    values = {_mm256_sub_ps(values.low, means), _mm256_sub_ps(values.high, means)};
    const Lanes before = sum;
    multiply_add(sum, values, values);
    if (!is_whole) keep_behind(sum, before, n - i);
  }
  return sum_lanes(sum);
}

float sum_of(const float* x, int64_t n) {
  Lanes sum = zero_lanes();
  for (int64_t i = 0; i < n; i += 16) {
    const bool is_whole = i + 16 <= n;
    const Lanes values = is_whole ? load_16(x + i) : load_16(x + i, n - i);
    const Lanes before = sum;
    sum = {_mm256_add_ps(sum.low, values.low), _mm256_add_ps(sum.high, values.high)};
    if (!is_whole) keep_behind(sum, before, n - i);
  }
  return sum_lanes(sum);
}

float inverse_root(float value) {
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(value)));
}

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float mean = sum_of_squares(x, n, 0.0f) / static_cast<float>(n);
  const __m256 factor = _mm256_set1_ps(inverse_root(mean + eps));
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t now = at_most_8(n - i);
    store(out + i, _mm256_mul_ps(_mm256_mul_ps(load(x + i, now), factor), load(weight + i, now)),
          now);
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                float* out) {
  const float mean = sum_of(x, n) / static_cast<float>(n);
  const float variance = sum_of_squares(x, n, mean) / static_cast<float>(n);
  const __m256 factor = _mm256_set1_ps(inverse_root(variance + eps)), means = _mm256_set1_ps(mean);
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t now = at_most_8(n - i);
    const __m256 normal = _mm256_mul_ps(_mm256_sub_ps(load(x + i, now), means), factor);
    store(out + i, _mm256_add_ps(_mm256_mul_ps(normal, load(weight + i, now)), load(bias + i, now)),
          now);
  }
}

// 4 pairs at a time: vaddsubps subtracts in even places and adds in odd ones.
void rotate(float* x, const float* cos, const float* sin, int64_t pairs) {
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  for (int64_t j = 0; j < pairs; j += 4) {
    const int64_t now = pairs - j < 4 ? pairs - j : 4;
    const __m256 values = load(x + 2 * j, 2 * now);
    const __m256 swapped = _mm256_permute_ps(values, 0xb1);
    const __m256 cosines = _mm256_permutevar8x32_ps(load(cos + j, now), twice);
    const __m256 sines = _mm256_permutevar8x32_ps(load(sin + j, now), twice);
    store(x + 2 * j,
          _mm256_addsub_ps(_mm256_mul_ps(values, cosines), _mm256_mul_ps(swapped, sines)), 2 * now);
  }
}

void add_scaled(float* y, const float* x, float weight, int64_t n) {
  const __m256 weights = _mm256_set1_ps(weight);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_fmadd_ps(weights, load(x + i), load(y + i)));
  if (i < n) store(y + i, _mm256_fmadd_ps(weights, load(x + i, n - i), load(y + i, n - i)), n - i);
}

void sigmoid(const float* x, int64_t n, float* s) {
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t now = at_most_8(n - i);
    store(s + i, sigmoid(load(x + i, now)), now);
  }
}

float exp_and_sum(float* x, int64_t n, float max) {
  return exp_and_sum_of(x, n, max);
}

void to_f16(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(load(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  if (i == n) return;
  uint16_t halves[8];
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(halves),
      _mm256_cvtps_ph(load(x + i, n - i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (int64_t j = 0; i + j < n; ++j) out[i + j] = halves[j];
}

void from_f16(const uint16_t* x, int64_t n, float* out) {
  const auto* halves = reinterpret_cast<const Half*>(x);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, load(halves + i));
  if (i < n) store(out + i, load(halves + i, n - i), n - i);
}

}  // namespace glmd::avx2
