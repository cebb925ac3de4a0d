// Norms, rotation, exponentials and conversions of one vector.
#include "kernels/scalar/arithmetic.h"
#include "kernels/scalar/kernels.h"

namespace glmd::scalar {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float mean = float_dot(x, x, n) / static_cast<float>(n);
  const float factor = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                float* out) {
  float lanes[dot_lanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % dot_lanes] += x[i];
  const float mean = sum_lanes(lanes) / static_cast<float>(n);

  float squares[dot_lanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float centred = x[i] - mean;
    squares[i % dot_lanes] = std::fma(centred, centred, squares[i % dot_lanes]);
  }
  const float variance = sum_lanes(squares) / static_cast<float>(n);
  const float factor = 1.0f / std::sqrt(variance + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

void rotate(float* x, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = b * cos[j] + a * sin[j];
  }
}

void add_scaled(float* y, const float* x, float weight, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::fma(weight, x[i], y[i]);
}

void sigmoid(const float* x, int64_t n, float* s) {
  for (int64_t i = 0; i < n; ++i) s[i] = sigmoid(x[i]);
}

float exp_and_sum(float* x, int64_t n, float max) {
  float lanes[dot_lanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = exponential(x[i] - max);
    lanes[i % dot_lanes] += x[i];
  }
  return sum_lanes(lanes);
}

int64_t find_largest(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return -1;
    if (x[i] > x[best]) best = i;
  }
  return best;
}

void weigh(const float* x, int64_t n, float max, float scale, float* weights, float* sums) {
  for (int64_t first = 0; first < n; first += weigh_block) {
    const int64_t end = n - first < weigh_block ? n : first + weigh_block;
    float lanes[dot_lanes] = {};
    for (int64_t i = first; i < end; ++i) {
      weights[i] = exponential((x[i] - max) * scale);
      lanes[(i - first) % dot_lanes] += weights[i];
    }
    *sums++ = sum_lanes(lanes);
  }
}

int64_t find_at_least(const float* x, int64_t n, float limit, int32_t* places) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] >= limit) places[count++] = static_cast<int32_t>(i);
  }
  return count;
}

void to_f16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_f16(x[i]);
}

void from_f16(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(x[i]);
}

}  // namespace glmd::scalar
