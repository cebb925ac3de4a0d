// From float values to the stored forms of block_formats.h, and back. The result depends on the values only: on no CPU
// feature and no number of threads. For nl4 and nl5 the scale of a group is searched for the least squared error.
#pragma once

#include <stdint.h>

#include "kernels/block_formats.h"

namespace glmd {

// `values` is [rows][columns]; `out` has matrix_bytes, gate_up_bytes or rows x embedding_row_bytes.
// Values must be finite.
void encode_matrix(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                   uint8_t* out);
void encode_gate_up(BlockFormat format, const float* gate, const float* up, int64_t rows_each,
                    int64_t columns, uint8_t* out);
void encode_embedding(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                      uint8_t* out);  // f32, f16, bf16, q8

// The inverse of encode_matrix: what the kernels compute with.
void decode_matrix(BlockFormat format, const uint8_t* stored, int64_t rows, int64_t columns,
                   float* values);

}  // namespace glmd
