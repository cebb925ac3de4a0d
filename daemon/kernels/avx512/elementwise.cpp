// Norms, exponentials and passes over logits in registers of 16. Rotation and conversions are too
// little work to be worth a version of their own.
#include "kernels/avx512/arithmetic.h"
#include "kernels/avx512/kernels.h"
#include "kernels/vector_elementwise.h"

namespace glmd::avx512 {

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

}  // namespace glmd::avx512
