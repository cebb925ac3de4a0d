// Turns float32 weights into the formats of block_formats.h and back. The converter encodes; tests
// and tools decode.
//
// Results depend on neither CPU nor thread count: `kernels` only say how fast. Callers may split a
// matrix at rows that are multiples of 8 only by encoding parts as matrices of their own: row
// scales stand in front.
//
// Values must be finite and at most 1e38. Rows whose largest magnitude is below 1e-30 are stored as
// zeros by nl4 and nl5.
#pragma once

#include "kernels/block_formats.h"
#include "kernels/kernel_table.h"

namespace glmd {

// `values` is row-major, `out` has matrix_bytes.
void encode_matrix(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                   uint8_t* out, const KernelTable& kernels = scalar_kernels());
void decode_matrix(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                   float* values);

// `gate` and `up` are row-major and of the same shape, `out` has gate_up_bytes.
void encode_gate_up(BlockFormat format, const float* gate, const float* up, int64_t rows,
                    int64_t columns, uint8_t* out, const KernelTable& kernels = scalar_kernels());
void decode_gate_up(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                    float* gate, float* up);

// Row-major for lookup; formats f32, f16, bf16, q8. `out` has rows x embedding_row_bytes.
void encode_embedding(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                      uint8_t* out, const KernelTable& kernels = scalar_kernels());
void decode_embedding(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                      float* values);

}  // namespace glmd
