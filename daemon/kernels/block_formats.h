// How weights lie in memory and on disk. Rows of a quantised matrix are interleaved by 8 and its
// columns cut in groups of 32, so that a kernel reads one stream and needs no horizontal sums;
// shapes are padded to that.
#pragma once

#include <stdint.h>

namespace glmd {

enum class BlockFormat : uint8_t {
  f32,   // row-major, no padding
  f16,   // row-major, no padding
  bf16,  // row-major, no padding
  q8,   // block of 8 rows x 32 columns: 8 f16 scales, then 8 x 32 int8 codes (-127..127): 272 bytes
  nl5,  // 8 scale bytes, 128 bytes of low nibbles, 32 bytes of fifth bits: 168 bytes; 32-entry
        // table
  nl4,  // 8 scale bytes, 128 bytes of nibbles: 136 bytes; 16-entry table
};
constexpr int block_format_count = 6;

constexpr int64_t tile_rows = 8;
constexpr int64_t group_columns = 32;

// A scale byte of nl4 and nl5: bit 7 sign, bits 0-6 magnitude m; scale = row_scale x (+-m).
// Within a block of nl4, nl5 and q8, codes are ordered for 4-byte broadcast of activations: for
// each chunk of 4 columns (8 columns for nibbles: low nibbles are the first 4, high nibbles the
// last 4), 8 rows x 4 columns. block_codes.h says where each code lies. In front of an nl4 or nl5
// matrix stand its f32 row scales, padded rows included; q8 has none.

struct Matrix {
  const uint8_t* data;  // 64-byte aligned for quantised formats
  int64_t rows;         // logical; stored padded to tile_rows where quantised
  int64_t columns;      // logical; stored padded to group_columns where quantised
  BlockFormat format;
};

constexpr bool is_quantised(BlockFormat format) {
  return format >= BlockFormat::q8;
}
constexpr int64_t padded_rows(int64_t rows) {
  return (rows + tile_rows - 1) / tile_rows * tile_rows;
}
constexpr int64_t padded_columns(int64_t columns) {
  return (columns + group_columns - 1) / group_columns * group_columns;
}
constexpr int64_t block_bytes(BlockFormat format) {
  return format == BlockFormat::q8 ? 272 : format == BlockFormat::nl5 ? 168 : 136;
}
constexpr int64_t element_bytes(BlockFormat format) {
  return format == BlockFormat::f32 ? 4 : 2;
}

// Bytes of a stored matrix.
constexpr int64_t matrix_bytes(BlockFormat format, int64_t rows, int64_t columns) {
  if (!is_quantised(format)) return rows * columns * element_bytes(format);
  const int64_t scale_bytes = format == BlockFormat::q8 ? 0 : padded_rows(rows) * 4;
  return scale_bytes + padded_rows(rows) / tile_rows * (padded_columns(columns) / group_columns) *
                           block_bytes(format);
}

// Gate and up share one matrix of twice the rows. Quantised: per 8-row tile and 32-column group the
// gate block comes first, then the up block; row scales likewise per tile: 8 of gate, 8 of up.
// Else: all gate rows, then all up rows.
constexpr int64_t gate_up_bytes(BlockFormat format, int64_t rows_each, int64_t columns) {
  return 2 * matrix_bytes(format, rows_each, columns);
}

// Embeddings (q8 too) are looked up one row at a time: row-major, per row and group a f16 scale and
// 32 codes.
constexpr int64_t embedding_row_bytes(BlockFormat format, int64_t columns) {
  if (format == BlockFormat::q8) return padded_columns(columns) / group_columns * 34;
  return columns * element_bytes(format);
}

constexpr int8_t nl4_table[16] = {-63, -49, -39, -31, -24, -17, -11, -5,
                                  1,   7,   13,  19,  26,  33,  44,  57};
constexpr int8_t nl5_table[32] = {-60, -52, -46, -42, -38, -34, -30, -26, -22, -18, -14,
                                  -11, -8,  -5,  -2,  0,   3,   5,   8,   11,  14,  18,
                                  22,  26,  30,  34,  38,  42,  46,  52,  57,  63};

}  // namespace glmd
