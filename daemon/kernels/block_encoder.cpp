#include "kernels/block_encoder.h"

#include <cstring>
#include <vector>

#include "kernels/block_codes.h"
#include "kernels/half.h"
#include "kernels/scale_search.h"
#include "platform/check.h"

namespace glmd {
namespace {

int64_t group_count(int64_t columns) {
  return padded_columns(columns) / group_columns;
}
int64_t tile_count(int64_t rows) {
  return padded_rows(rows) / tile_rows;
}

// ---- Float formats

void encode_floats(BlockFormat format, const float* values, int64_t n, uint8_t* out) {
  if (format == BlockFormat::f32) {
    memcpy(out, values, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t half =
        format == BlockFormat::f16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    memcpy(out + i * 2, &half, 2);
  }
}

void decode_floats(BlockFormat format, const uint8_t* data, int64_t n, float* values) {
  if (format == BlockFormat::f32) {
    memcpy(values, data, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    memcpy(&half, data + i * 2, 2);
    values[i] = format == BlockFormat::f16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
}

// ---- Tiles. A tile's blocks lie `block_stride` apart, so that gate and up can alternate.

struct Tile {
  uint8_t* row_scales;  // 8 f32; unused by q8
  uint8_t* blocks;
  int64_t block_stride;
};

constexpr float smallest_row = 1e-30f;

// So that the largest candidate of the row has magnitude 127.
float choose_row_scale(BlockFormat format, float largest) {
  if (format == BlockFormat::q8 || largest < smallest_row) return 0.0f;
  const float factor = format == BlockFormat::nl4 ? Nl4Search::factor_last : Nl5Search::factor_last;
  return largest * (factor / largest_entry / 127.0f);
}

uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value;
  memcpy(&value, bytes, 4);
  return value;
}
void store_u32(uint8_t* bytes, uint32_t value) {
  memcpy(bytes, &value, 4);
}

// A row's codes of one group into a block, where code_place() says: four columns at a time.
void place_codes(BlockFormat format, const uint8_t* codes, int64_t row, uint8_t* block) {
  uint32_t fifth_bits = 0;
  for (int64_t column = 0; column < group_columns; column += 4) {
    const CodePlace place = code_place(row, column);
    const uint32_t four = load_u32(codes + column);
    if (format == BlockFormat::q8) {
      store_u32(block + q8_scale_bytes + place.vector * 32 + place.byte, four);
      continue;
    }
    fifth_bits |= (four >> 4 & 0x01010101) << place.vector;
    if (place.vector % 2 != 0) continue;
    const uint32_t high = load_u32(codes + column + 4);
    store_u32(nibble_byte(block, place), (four & 0x0f0f0f0f) | (high & 0x0f0f0f0f) << 4);
  }
  if (format == BlockFormat::nl5) store_u32(fifth_bit_byte(block, code_place(row, 0)), fifth_bits);
}

void place_scale(BlockFormat format, uint16_t scale, int64_t row, uint8_t* block) {
  if (format == BlockFormat::q8) memcpy(block + row * 2, &scale, 2);
  if (format != BlockFormat::q8) block[row] = static_cast<uint8_t>(scale);
}

// The groups of one row, before they are put in their places.
struct EncodedRow {
  explicit EncodedRow(int64_t columns)
      : scales(static_cast<size_t>(group_count(columns))),
        codes(static_cast<size_t>(padded_columns(columns))) {}
  std::vector<uint16_t> scales;
  std::vector<uint8_t> codes;
};

// Writes into zeroed memory.
void encode_tile(const KernelTable& kernels, BlockFormat format, const float* values, int64_t rows,
                 int64_t columns, const Tile& tile, EncodedRow& encoded) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = values + r * columns;
    const float row_scale = choose_row_scale(format, kernels.largest_magnitude(row, columns));
    if (format != BlockFormat::q8) memcpy(tile.row_scales + r * 4, &row_scale, 4);
    kernels.encode_row[static_cast<size_t>(format)](row, columns, row_scale, encoded.scales.data(),
                                                    encoded.codes.data());
    for (int64_t group = 0; group < group_count(columns); ++group) {
      uint8_t* block = tile.blocks + group * tile.block_stride;
      place_scale(format, encoded.scales[static_cast<size_t>(group)], r, block);
      place_codes(format, encoded.codes.data() + group * group_columns, r, block);
    }
  }
}

template <class Block>
void decode_blocks(const Tile& tile, int64_t rows, int64_t columns, float* values) {
  float row_scales[tile_rows] = {1, 1, 1, 1, 1, 1, 1, 1};
  if (Block::format != BlockFormat::q8) memcpy(row_scales, tile.row_scales, sizeof row_scales);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint8_t* block = tile.blocks + c / group_columns * tile.block_stride;
      const auto entry = static_cast<float>(Block::value(block, r, c % group_columns));
      values[r * columns + c] = row_scales[r] * (Block::scale(block, r) * entry);
    }
  }
}

void decode_tile(BlockFormat format, const Tile& tile, int64_t rows, int64_t columns,
                 float* values) {
  if (format == BlockFormat::q8) decode_blocks<Q8Block>(tile, rows, columns, values);
  if (format == BlockFormat::nl5) decode_blocks<Nl5Block>(tile, rows, columns, values);
  if (format == BlockFormat::nl4) decode_blocks<Nl4Block>(tile, rows, columns, values);
}

// Part `part` of `parts` that alternate (gate and up: 0 and 1 of 2) of tile `index`.
Tile locate_tile(BlockFormat format, uint8_t* data, int64_t rows, int64_t columns, int64_t index,
                 int part, int parts) {
  const int64_t scale_bytes = format == BlockFormat::q8 ? 0 : padded_rows(rows) * parts * 4;
  const int64_t bytes = block_bytes(format);
  return {.row_scales = data + (index * parts + part) * tile_rows * 4,
          .blocks = data + scale_bytes + (index * group_count(columns) * parts + part) * bytes,
          .block_stride = parts * bytes};
}

int64_t rows_in_tile(int64_t rows, int64_t tile) {
  return rows - tile * tile_rows < tile_rows ? rows - tile * tile_rows : tile_rows;
}

void encode_part(const KernelTable& kernels, BlockFormat format, const float* values, int64_t rows,
                 int64_t columns, uint8_t* out, int part, int parts) {
  EncodedRow encoded(columns);
  for (int64_t tile = 0; tile < tile_count(rows); ++tile) {
    encode_tile(kernels, format, values + tile * tile_rows * columns, rows_in_tile(rows, tile),
                columns, locate_tile(format, out, rows, columns, tile, part, parts), encoded);
  }
}

void decode_part(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                 float* values, int part, int parts) {
  auto* bytes = const_cast<uint8_t*>(data);  // a Tile serves both ways
  for (int64_t tile = 0; tile < tile_count(rows); ++tile) {
    decode_tile(format, locate_tile(format, bytes, rows, columns, tile, part, parts),
                rows_in_tile(rows, tile), columns, values + tile * tile_rows * columns);
  }
}

}  // namespace

void encode_matrix(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                   uint8_t* out, const KernelTable& kernels) {
  if (!is_quantised(format)) {
    encode_floats(format, values, rows * columns, out);
    return;
  }
  memset(out, 0, static_cast<size_t>(matrix_bytes(format, rows, columns)));
  encode_part(kernels, format, values, rows, columns, out, 0, 1);
}

void decode_matrix(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                   float* values) {
  if (!is_quantised(format)) {
    decode_floats(format, data, rows * columns, values);
    return;
  }
  decode_part(format, data, rows, columns, values, 0, 1);
}

void encode_gate_up(BlockFormat format, const float* gate, const float* up, int64_t rows,
                    int64_t columns, uint8_t* out, const KernelTable& kernels) {
  if (!is_quantised(format)) {
    encode_floats(format, gate, rows * columns, out);
    encode_floats(format, up, rows * columns, out + rows * columns * element_bytes(format));
    return;
  }
  memset(out, 0, static_cast<size_t>(gate_up_bytes(format, rows, columns)));
  encode_part(kernels, format, gate, rows, columns, out, 0, 2);
  encode_part(kernels, format, up, rows, columns, out, 1, 2);
}

void decode_gate_up(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                    float* gate, float* up) {
  if (!is_quantised(format)) {
    decode_floats(format, data, rows * columns, gate);
    decode_floats(format, data + rows * columns * element_bytes(format), rows * columns, up);
    return;
  }
  decode_part(format, data, rows, columns, gate, 0, 2);
  decode_part(format, data, rows, columns, up, 1, 2);
}

void encode_embedding(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                      uint8_t* out, const KernelTable& kernels) {
  if (!is_quantised(format)) {
    encode_floats(format, values, rows * columns, out);
    return;
  }
  CHECK(format == BlockFormat::q8);
  EncodedRow encoded(columns);
  for (int64_t r = 0; r < rows; ++r) {
    kernels.encode_row[static_cast<size_t>(format)](values + r * columns, columns, 0.0f,
                                                    encoded.scales.data(), encoded.codes.data());
    for (int64_t group = 0; group < group_count(columns); ++group) {
      memcpy(out, &encoded.scales[static_cast<size_t>(group)], 2);
      memcpy(out + 2, encoded.codes.data() + group * group_columns, group_columns);
      out += 2 + group_columns;
    }
  }
}

void decode_embedding(BlockFormat format, const uint8_t* data, int64_t rows, int64_t columns,
                      float* values) {
  if (!is_quantised(format)) {
    decode_floats(format, data, rows * columns, values);
    return;
  }
  CHECK(format == BlockFormat::q8);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint8_t* group =
          data + r * embedding_row_bytes(format, columns) + c / group_columns * 34;
      uint16_t scale;
      memcpy(&scale, group, 2);
      const auto code = static_cast<int8_t>(group[2 + c % group_columns]);
      values[r * columns + c] = f16_to_f32(scale) * static_cast<float>(code);
    }
  }
}

}  // namespace glmd
