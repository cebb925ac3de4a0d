// Norms, exponentials, rotation and conversions of one vector.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"
#include "kernels/vector_elementwise.h"

namespace glmd::avx2 {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  rms_norm_of<Lanes>(x, weight, n, eps, out);
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                float* out) {
  layer_norm_of<Lanes>(x, weight, bias, n, eps, out);
}

void add_scaled(float* y, const float* x, float weight, int64_t n) {
  add_scaled_of<Lanes>(y, x, weight, n);
}

void sigmoid(const float* x, int64_t n, float* s) {
  sigmoid_of<Lanes>(x, n, s);
}

float exp_and_sum(float* x, int64_t n, float max) {
  return exp_scaled<Lanes>(x, n, max, 1.0f, x);
}

int64_t find_largest(const float* x, int64_t n) {
  return find_largest_of<Lanes>(x, n);
}

void weigh(const float* x, int64_t n, float max, float scale, float* weights, float* sums) {
  weigh_of<Lanes>(x, n, max, scale, weights, sums);
}

int64_t find_at_least(const float* x, int64_t n, float limit, int32_t* places) {
  return find_at_least_of<Lanes>(x, n, limit, places);
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
