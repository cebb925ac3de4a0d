#include "kernels/block_encoder.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/block_codes.h"
#include "kernels/half.h"
#include "platform/check.h"

namespace glmd {
namespace {

int64_t group_count(int64_t columns) {
  return padded_columns(columns) / group_columns;
}
int64_t tile_count(int64_t rows) {
  return padded_rows(rows) / tile_rows;
}

float largest_magnitude(const float* values, int64_t n) {
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
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

// ---- One group of q8

// Rounds to nearest even for |value| < 2^22.
int round_to_int(float value) {
  return static_cast<int>((value + 12582912.0f) - 12582912.0f);
}

uint16_t encode_q8_group(const float* values, int64_t n, int8_t* codes) {
  memset(codes, 0, group_columns);
  const float wanted = largest_magnitude(values, n) / 127.0f;
  const uint16_t half = f32_to_f16(wanted < 65504.0f ? wanted : 65504.0f);
  const float scale = f16_to_f32(half);
  if (scale == 0.0f) return half;
  for (int64_t i = 0; i < n; ++i) {
    const float code = values[i] / scale;  // the rounded scale may be a little small
    codes[i] = static_cast<int8_t>(round_to_int(code > 127.0f    ? 127.0f
                                                : code < -127.0f ? -127.0f
                                                                 : code));
  }
  return half;
}

// ---- One group of nl4 and nl5

// The nearest entry by lookup. Entries are integers, so borders between them are multiples of one
// half, and the half unit that a value falls in decides: `bins[128 + 2 x value]`. A value on a
// border is in the bin above it.
struct NearestEntry {
  uint8_t codes[256];
  float entries[256];
};

template <int entry_count>
constexpr NearestEntry make_nearest_entry(const int8_t (&table)[entry_count]) {
  NearestEntry nearest = {};
  for (int bin = 0; bin < 256; ++bin) {
    const int centre = 2 * (bin - 128) + 1;  // in quarters
    int best = 0;
    for (int code = 1; code < entry_count; ++code) {
      const int distance =
          centre > 4 * table[code] ? centre - 4 * table[code] : 4 * table[code] - centre;
      const int least =
          centre > 4 * table[best] ? centre - 4 * table[best] : 4 * table[best] - centre;
      if (distance < least) best = code;
    }
    nearest.codes[bin] = static_cast<uint8_t>(best);
    nearest.entries[bin] = static_cast<float>(table[best]);
  }
  return nearest;
}

struct Nl4Search {
  static constexpr NearestEntry nearest = make_nearest_entry(nl4_table);
  static constexpr int factor_count = 17;
  static constexpr float factor_first = 0.60f, factor_last = 1.08f;
  static constexpr bool has_fifth_bit = false;
};
struct Nl5Search {
  static constexpr NearestEntry nearest = make_nearest_entry(nl5_table);
  static constexpr int factor_count = 13;
  static constexpr float factor_first = 0.75f, factor_last = 1.06f;
  static constexpr bool has_fifth_bit = true;
};

constexpr float largest_entry = 63.0f;
constexpr float smallest_row = 1e-30f;

// So that the largest candidate of the row has magnitude 127.
template <class Search>
float choose_row_scale(const float* values, int64_t columns) {
  const float largest = largest_magnitude(values, columns);
  if (largest < smallest_row) return 0.0f;
  return largest * (Search::factor_last / largest_entry / 127.0f);
}

int bin_of(float value, float bins_per_unit) {
  const float bin = value * bins_per_unit + 128.0f;
  return static_cast<int>(bin < 0.0f ? 0.0f : bin > 255.0f ? 255.0f : bin);
}

// In units of the scale squared. Four sums, so that additions need not wait for each other.
float squared_error(const NearestEntry& nearest, const float* values, int64_t n,
                    float inverse_scale) {
  const float bins_per_unit = 2.0f * inverse_scale;
  float sums[4] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float off = values[i] * inverse_scale - nearest.entries[bin_of(values[i], bins_per_unit)];
    sums[i % 4] += off * off;
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// +-m, the scale of the group in units of the row's.
template <class Search>
int search_group_scale(const float* values, int64_t n, float row_scale) {
  const float amax = largest_magnitude(values, n);
  if (row_scale == 0.0f || amax == 0.0f) return 0;
  int best = 0, tried = 0;
  float least = 0.0f;
  for (int i = 0; i < Search::factor_count; ++i) {
    const float factor = Search::factor_first + (Search::factor_last - Search::factor_first) *
                                                    static_cast<float>(i) /
                                                    (Search::factor_count - 1);
    const int wanted = round_to_int(amax * factor / (largest_entry * row_scale));
    const int magnitude = wanted < 1 ? 1 : wanted > 127 ? 127 : wanted;
    if (magnitude == tried) continue;
    tried = magnitude;
    const auto units = static_cast<float>(magnitude);
    const float inverse_scale = 1.0f / (row_scale * units);
    for (int sign = 1; sign >= -1; sign -= 2) {
      const float error =
          squared_error(Search::nearest, values, n, sign > 0 ? inverse_scale : -inverse_scale) *
          (units * units);
      if (best != 0 && error >= least) continue;
      least = error;
      best = sign * magnitude;
    }
  }
  return best;
}

template <class Search>
void encode_nl_group(const float* values, int64_t n, float row_scale, int64_t row, uint8_t* block) {
  const int units = search_group_scale<Search>(values, n, row_scale);
  block[row] = static_cast<uint8_t>(units < 0 ? 128 - units : units);
  if (units == 0) return;
  const float magnitude = 1.0f / (row_scale * static_cast<float>(units < 0 ? -units : units));
  const float bins_per_unit = 2.0f * (units < 0 ? -magnitude : magnitude);
  for (int64_t column = 0; column < n; ++column) {
    const unsigned code = Search::nearest.codes[bin_of(values[column], bins_per_unit)];
    const CodePlace place = code_place(row, column);
    *nibble_byte(block, place) |= static_cast<uint8_t>((code & 15) << (place.vector % 2 * 4));
    if (Search::has_fifth_bit)
      *fifth_bit_byte(block, place) |= static_cast<uint8_t>(code >> 4 << place.vector);
  }
}

// ---- Tiles. A tile's blocks lie `block_stride` apart, so that gate and up can alternate.

struct Tile {
  uint8_t* row_scales;  // 8 f32; unused by q8
  uint8_t* blocks;
  int64_t block_stride;
};

template <class Search>
void encode_nl_tile(const float* values, int64_t rows, int64_t columns, const Tile& tile) {
  float row_scales[tile_rows] = {};
  for (int64_t r = 0; r < rows; ++r)
    row_scales[r] = choose_row_scale<Search>(values + r * columns, columns);
  memcpy(tile.row_scales, row_scales, sizeof row_scales);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0; first < columns; first += group_columns) {
      const int64_t n = columns - first < group_columns ? columns - first : group_columns;
      encode_nl_group<Search>(values + r * columns + first, n, row_scales[r], r,
                              tile.blocks + first / group_columns * tile.block_stride);
    }
  }
}

void encode_q8_tile(const float* values, int64_t rows, int64_t columns, const Tile& tile) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0; first < columns; first += group_columns) {
      const int64_t n = columns - first < group_columns ? columns - first : group_columns;
      uint8_t* block = tile.blocks + first / group_columns * tile.block_stride;
      int8_t codes[group_columns];
      const uint16_t scale = encode_q8_group(values + r * columns + first, n, codes);
      memcpy(block + r * 2, &scale, 2);
      for (int64_t column = 0; column < n; ++column) {
        const CodePlace place = code_place(r, column);
        block[q8_scale_bytes + place.vector * 32 + place.byte] =
            static_cast<uint8_t>(codes[column]);
      }
    }
  }
}

// Writes into zeroed memory.
void encode_tile(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                 const Tile& tile) {
  if (format == BlockFormat::q8) encode_q8_tile(values, rows, columns, tile);
  if (format == BlockFormat::nl5) encode_nl_tile<Nl5Search>(values, rows, columns, tile);
  if (format == BlockFormat::nl4) encode_nl_tile<Nl4Search>(values, rows, columns, tile);
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

void encode_part(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                 uint8_t* out, int part, int parts) {
  for (int64_t tile = 0; tile < tile_count(rows); ++tile) {
    encode_tile(format, values + tile * tile_rows * columns, rows_in_tile(rows, tile), columns,
                locate_tile(format, out, rows, columns, tile, part, parts));
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

bool has_non_finite(const float* values, int64_t n) {
  uint32_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    found |= (std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return found != 0;
}

void encode_matrix(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                   uint8_t* out) {
  if (!is_quantised(format)) {
    encode_floats(format, values, rows * columns, out);
    return;
  }
  memset(out, 0, static_cast<size_t>(matrix_bytes(format, rows, columns)));
  encode_part(format, values, rows, columns, out, 0, 1);
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
                    int64_t columns, uint8_t* out) {
  if (!is_quantised(format)) {
    encode_floats(format, gate, rows * columns, out);
    encode_floats(format, up, rows * columns, out + rows * columns * element_bytes(format));
    return;
  }
  memset(out, 0, static_cast<size_t>(gate_up_bytes(format, rows, columns)));
  encode_part(format, gate, rows, columns, out, 0, 2);
  encode_part(format, up, rows, columns, out, 1, 2);
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
                      uint8_t* out) {
  if (!is_quantised(format)) {
    encode_floats(format, values, rows * columns, out);
    return;
  }
  CHECK(format == BlockFormat::q8);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0; first < columns; first += group_columns) {
      const int64_t n = columns - first < group_columns ? columns - first : group_columns;
      int8_t codes[group_columns];
      const uint16_t scale = encode_q8_group(values + r * columns + first, n, codes);
      memcpy(out, &scale, 2);
      memcpy(out + 2, codes, sizeof codes);
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
