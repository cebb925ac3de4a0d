// Matrix times rows of activations: the definition of the order of every sum.
#include "kernels/block_codes.h"
#include "kernels/scalar/arithmetic.h"
#include "kernels/scalar/kernels.h"

namespace glmd::scalar {
namespace {

int64_t group_count(int64_t columns) {
  return padded_columns(columns) / group_columns;
}

// The scale of a row, 1 where the format has none (a product with 1 changes no bit).
float row_scale(BlockFormat format, const uint8_t* data, int64_t index) {
  if (format == BlockFormat::q8) return 1.0f;
  float scale;
  memcpy(&scale, data + index * 4, 4);
  return scale;
}

int64_t row_scale_bytes(BlockFormat format, int64_t stored_rows) {
  return format == BlockFormat::q8 ? 0 : stored_rows * 4;
}

// One row of one tile: `block` is its first block, the next one lies `block_stride` further.
template <class Block>
float quantised_dot(const uint8_t* block, int64_t block_stride, int64_t row, const int8_t* codes,
                    const float* scales, int64_t groups) {
  float sum = 0.0f;
  for (int64_t group = 0; group < groups; ++group, block += block_stride, codes += group_columns) {
    int32_t dot = 0;
    for (int64_t i = 0; i < group_columns; ++i) dot += Block::value(block, row, i) * codes[i];
    sum = std::fma(static_cast<float>(dot), Block::scale(block, row) * scales[group], sum);
  }
  return sum;
}

template <class Block>
void quantised_matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride,
                      int64_t begin, int64_t end) {
  const int64_t groups = group_count(w.columns);
  const int64_t stride = block_bytes(Block::format);
  const uint8_t* blocks = w.data + row_scale_bytes(Block::format, padded_rows(w.rows));
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* block = blocks + r / tile_rows * groups * stride;
    const float scale = row_scale(Block::format, w.data, r);
    for (int64_t n = 0; n < x.row_count; ++n) {
      y[n * y_stride + r] = scale * quantised_dot<Block>(block, stride, r % tile_rows,
                                                         x.codes + n * groups * group_columns,
                                                         x.scales + n * groups, groups);
    }
  }
}

template <class Block>
void quantised_gate_up(const Matrix& w, const Activations& x, float* y, int64_t y_stride,
                       int64_t begin, int64_t end) {
  const int64_t groups = group_count(w.columns);
  const int64_t bytes = block_bytes(Block::format);
  const uint8_t* blocks = w.data + row_scale_bytes(Block::format, 2 * padded_rows(w.rows));
  for (int64_t r = begin; r < end; ++r) {
    const int64_t tile = r / tile_rows, row = r % tile_rows;
    const uint8_t* gate_block = blocks + tile * groups * 2 * bytes;
    const float gate_scale = row_scale(Block::format, w.data, tile * 2 * tile_rows + row);
    const float up_scale = row_scale(Block::format, w.data, (tile * 2 + 1) * tile_rows + row);
    for (int64_t n = 0; n < x.row_count; ++n) {
      const int8_t* codes = x.codes + n * groups * group_columns;
      const float* scales = x.scales + n * groups;
      const float gate =
          gate_scale * quantised_dot<Block>(gate_block, 2 * bytes, row, codes, scales, groups);
      const float up = up_scale * quantised_dot<Block>(gate_block + bytes, 2 * bytes, row, codes,
                                                       scales, groups);
      y[n * y_stride + r] = silu(gate) * up;
    }
  }
}

template <class Element>
void float_matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end) {
  const auto* weights = reinterpret_cast<const Element*>(w.data);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t n = 0; n < x.row_count; ++n) {
      y[n * y_stride + r] =
          float_dot(weights + r * w.columns, x.values + n * x.value_stride, w.columns);
    }
  }
}

template <class Element>
void float_gate_up(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                   int64_t end) {
  const auto* gates = reinterpret_cast<const Element*>(w.data);
  const Element* ups = gates + w.rows * w.columns;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t n = 0; n < x.row_count; ++n) {
      const float* values = x.values + n * x.value_stride;
      const float gate = float_dot(gates + r * w.columns, values, w.columns);
      const float up = float_dot(ups + r * w.columns, values, w.columns);
      y[n * y_stride + r] = silu(gate) * up;
    }
  }
}

template <class Element>
void copy_row(const uint8_t* row, int64_t columns, float* out) {
  const auto* elements = reinterpret_cast<const Element*>(row);
  for (int64_t i = 0; i < columns; ++i) out[i] = load(elements + i);
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
void matmul_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
               int64_t end) {
  quantised_matmul<Q8Block>(w, x, y, y_stride, begin, end);
}
void matmul_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  quantised_matmul<Nl5Block>(w, x, y, y_stride, begin, end);
}
void matmul_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  quantised_matmul<Nl4Block>(w, x, y, y_stride, begin, end);
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
void gate_up_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  quantised_gate_up<Q8Block>(w, x, y, y_stride, begin, end);
}
void gate_up_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  quantised_gate_up<Nl5Block>(w, x, y, y_stride, begin, end);
}
void gate_up_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  quantised_gate_up<Nl4Block>(w, x, y, y_stride, begin, end);
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
  for (int64_t i = 0; i < columns; ++i) {
    const uint8_t* group = row + i / group_columns * (2 + group_columns);
    uint16_t scale;
    memcpy(&scale, group, 2);
    const auto code = static_cast<int8_t>(group[2 + i % group_columns]);
    out[i] = f16_to_f32(scale) * static_cast<float>(code);
  }
}

}  // namespace glmd::scalar
