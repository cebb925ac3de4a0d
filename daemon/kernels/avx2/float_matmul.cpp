// Matrices of floats, 4 rows of the matrix at a time, which share the activations; and the rows of
// embeddings.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"

namespace glmd::avx2 {
namespace {

template <class Element, int rows>
void float_dots(const Element* const* weights, const float* x, int64_t n, float* dots) {
  Lanes sums[rows];
  for (int r = 0; r < rows; ++r) sums[r] = zero_lanes();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes values = load_16(x + i);
    for (int r = 0; r < rows; ++r) multiply_add(sums[r], load_16(weights[r] + i), values);
  }
  if (i < n) {
    const Lanes values = load_16(x + i, n - i);
    for (int r = 0; r < rows; ++r) {
      const Lanes before = sums[r];
      multiply_add(sums[r], load_16(weights[r] + i, n - i), values);
      keep_behind(sums[r], before, n - i);
    }
  }
  for (int r = 0; r < rows; ++r) dots[r] = sum_lanes(sums[r]);
}

template <class Element>
void float_matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end) {
  const auto* weights = reinterpret_cast<const Element*>(w.data);
  int64_t r = begin;
  for (; r + 4 <= end; r += 4) {
    const Element* four[4];
    for (int i = 0; i < 4; ++i) four[i] = weights + (r + i) * w.columns;
    for (int64_t n = 0; n < x.row_count; ++n) {
      float_dots<Element, 4>(four, x.values + n * x.value_stride, w.columns, y + n * y_stride + r);
    }
  }
  for (; r < end; ++r) {
    const Element* one = weights + r * w.columns;
    for (int64_t n = 0; n < x.row_count; ++n) {
      float_dots<Element, 1>(&one, x.values + n * x.value_stride, w.columns, y + n * y_stride + r);
    }
  }
}

template <class Element>
void float_gate_up(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                   int64_t end) {
  const auto* gates = reinterpret_cast<const Element*>(w.data);
  for (int64_t r = begin; r < end; ++r) {
    const Element* two[2] = {gates + r * w.columns, gates + (w.rows + r) * w.columns};
    for (int64_t n = 0; n < x.row_count; ++n) {
      float dots[2];
      float_dots<Element, 2>(two, x.values + n * x.value_stride, w.columns, dots);
      y[n * y_stride + r] = _mm256_cvtss_f32(silu(_mm256_set1_ps(dots[0]))) * dots[1];
    }
  }
}

template <class Element>
void copy_row(const uint8_t* row, int64_t columns, float* out) {
  const auto* elements = reinterpret_cast<const Element*>(row);
  int64_t i = 0;
  for (; i + 8 <= columns; i += 8) _mm256_storeu_ps(out + i, load(elements + i));
  if (i < columns) store(out + i, load(elements + i, columns - i), columns - i);
}

}  // namespace

void matmul_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  float_matmul<float>(w, x, y, y_stride, begin, end);
}
void matmul_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  float_matmul<Half>(w, x, y, y_stride, begin, end);
}
void matmul_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  float_matmul<Brain>(w, x, y, y_stride, begin, end);
}

void gate_up_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  float_gate_up<float>(w, x, y, y_stride, begin, end);
}
void gate_up_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  float_gate_up<Half>(w, x, y, y_stride, begin, end);
}
void gate_up_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end) {
  float_gate_up<Brain>(w, x, y, y_stride, begin, end);
}

void embedding_row_f32(const uint8_t* row, int64_t columns, float* out) {
  copy_row<float>(row, columns, out);
}
void embedding_row_f16(const uint8_t* row, int64_t columns, float* out) {
  copy_row<Half>(row, columns, out);
}
void embedding_row_bf16(const uint8_t* row, int64_t columns, float* out) {
  copy_row<Brain>(row, columns, out);
}

void embedding_row_q8(const uint8_t* row, int64_t columns, float* out) {
  for (int64_t first = 0; first < columns; first += group_columns, row += 2 + group_columns) {
    uint16_t half;
    memcpy(&half, row, 2);
    const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half)));
    for (int64_t i = 0; i < group_columns && first + i < columns; i += 8) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + 2 + i));
      const __m256 values = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)));
      store(out + first + i, values, columns - first - i);
    }
  }
}

}  // namespace glmd::avx2
