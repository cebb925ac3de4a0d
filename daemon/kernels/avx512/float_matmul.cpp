// Matrices of floats: a block of 4 rows of the matrix and up to 6 of activations keeps its 24 dots,
// 16 lanes each, in registers.
#include "kernels/avx512/arithmetic.h"
#include "kernels/avx512/kernels.h"

namespace glmd::avx512 {
namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

__m512 widened(__m256i bits, const Half*) {
  return _mm512_cvtph_ps(bits);
}
__m512 widened(__m256i bits, const Brain*) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
template <class Element>
__m512 load(const Element* from, __mmask16 lanes) {
  return widened(_mm256_maskz_loadu_epi16(lanes, from), from);
}
__m512 load(const float* from, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, from);
}
template <class Element>
__m512 load(const Element* from) {
  return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), from);
}
__m512 load(const float* from) {
  return _mm512_loadu_ps(from);
}

template <class Element, int weight_rows, int rows>
void block(const Element* weights, int64_t columns, const float* x, int64_t x_stride, float* y,
           int64_t y_stride) {
  __m512 sums[rows][weight_rows];
  for (int n = 0; n < rows; ++n) {
    for (int r = 0; r < weight_rows; ++r) sums[n][r] = _mm512_setzero_ps();
  }
  int64_t i = 0;
  for (; i + 16 <= columns; i += 16) {
    __m512 w[weight_rows];
    for (int r = 0; r < weight_rows; ++r) w[r] = load(weights + r * columns + i);
    for (int n = 0; n < rows; ++n) {
      const __m512 values = load(x + n * x_stride + i);
      for (int r = 0; r < weight_rows; ++r) sums[n][r] = _mm512_fmadd_ps(w[r], values, sums[n][r]);
    }
  }
  if (i < columns) {  // lanes behind the end keep their sums
    const __mmask16 lanes = first_lanes(columns - i);
    for (int n = 0; n < rows; ++n) {
      const __m512 values = load(x + n * x_stride + i, lanes);
      for (int r = 0; r < weight_rows; ++r) {
        const __m512 w = load(weights + r * columns + i, lanes);
        sums[n][r] = _mm512_mask3_fmadd_ps(w, values, sums[n][r], lanes);
      }
    }
  }
  for (int n = 0; n < rows; ++n) {
    for (int r = 0; r < weight_rows; ++r) y[n * y_stride + r] = Lanes{sums[n][r]}.sum();
  }
}

// Six rows of activations stay in the second cache while the matrix passes.
template <class Element>
void matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
            int64_t end) {
  const auto* weights = reinterpret_cast<const Element*>(w.data);
  const int64_t columns = w.columns;
  int64_t n = 0;
  const auto pass = [&]<int rows>() {
    const float* from = x.values + n * x.value_stride;
    float* to = y + n * y_stride;
    int64_t r = begin;
    for (; r + 4 <= end; r += 4) {
      block<Element, 4, rows>(weights + r * columns, columns, from, x.value_stride, to + r,
                              y_stride);
    }
    for (; r < end; ++r) {
      block<Element, 1, rows>(weights + r * columns, columns, from, x.value_stride, to + r,
                              y_stride);
    }
    n += rows;
  };
  while (n + 6 <= x.row_count) pass.template operator()<6>();
  while (n + 2 <= x.row_count) pass.template operator()<2>();
  while (n < x.row_count) pass.template operator()<1>();
}

}  // namespace

void matmul_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  matmul<float>(w, x, y, y_stride, begin, end);
}
void matmul_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  matmul<Half>(w, x, y, y_stride, begin, end);
}
void matmul_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  matmul<Brain>(w, x, y, y_stride, begin, end);
}

}  // namespace glmd::avx512
