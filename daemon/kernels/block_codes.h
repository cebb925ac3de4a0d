// Where one code lies in a block of 8 rows x 32 columns: the definition that encoder, decoder and
// scalar kernels share. A block is read in vectors of 32 bytes; byte 4 x row + j of a vector
// belongs to `row`.
//   q8:   vector c holds columns 4c..4c+3.
//   nl4:  vector c holds columns 8c..8c+3 in low nibbles and 8c+4..8c+7 in high ones.
//   nl5:  the low 4 bits as nl4; the fifth bits are one more vector, whose bit k in byte i is the
//   fifth bit of
//         what q8 would hold in byte i of vector k. A kernel shifts that bit to the top of the byte
//         and blends.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/block_formats.h"
#include "kernels/half.h"

namespace glmd {

constexpr int64_t q8_scale_bytes = tile_rows * 2;
constexpr int64_t nl_scale_bytes = tile_rows;
constexpr int64_t nl_nibble_bytes = tile_rows * group_columns / 2;

struct CodePlace {
  int64_t vector;  // as in q8: 4 columns a vector
  int64_t byte;    // within the vector
};
constexpr CodePlace code_place(int64_t row, int64_t column) {
  return {column / 4, row * 4 + column % 4};
}

template <class Byte>
Byte* nibble_byte(Byte* block, CodePlace place) {
  return block + nl_scale_bytes + place.vector / 2 * 32 + place.byte;
}
template <class Byte>
Byte* fifth_bit_byte(Byte* block, CodePlace place) {
  return block + nl_scale_bytes + nl_nibble_bytes + place.byte;
}

inline int nl4_code(const uint8_t* block, int64_t row, int64_t column) {
  const CodePlace place = code_place(row, column);
  return *nibble_byte(block, place) >> (place.vector % 2 * 4) & 15;
}
inline int nl5_code(const uint8_t* block, int64_t row, int64_t column) {
  const CodePlace place = code_place(row, column);
  return nl4_code(block, row, column) | (*fifth_bit_byte(block, place) >> place.vector & 1) << 4;
}

// +-m, to be multiplied by the scale of the row.
inline int nl_group_scale(const uint8_t* block, int64_t row) {
  const int magnitude = block[row] & 127;
  return block[row] & 128 ? -magnitude : magnitude;
}

struct Nl4Block {
  static constexpr BlockFormat format = BlockFormat::nl4;
  static int value(const uint8_t* block, int64_t row, int64_t column) {
    return nl4_table[nl4_code(block, row, column)];
  }
  static float scale(const uint8_t* block, int64_t row) {
    return static_cast<float>(nl_group_scale(block, row));
  }
};

struct Nl5Block {
  static constexpr BlockFormat format = BlockFormat::nl5;
  static int value(const uint8_t* block, int64_t row, int64_t column) {
    return nl5_table[nl5_code(block, row, column)];
  }
  static float scale(const uint8_t* block, int64_t row) {
    return static_cast<float>(nl_group_scale(block, row));
  }
};

struct Q8Block {
  static constexpr BlockFormat format = BlockFormat::q8;
  static int value(const uint8_t* block, int64_t row, int64_t column) {
    const CodePlace place = code_place(row, column);
    return static_cast<int8_t>(block[q8_scale_bytes + place.vector * 32 + place.byte]);
  }
  static float scale(const uint8_t* block, int64_t row) {
    uint16_t half;
    memcpy(&half, block + row * 2, 2);
    return f16_to_f32(half);
  }
};

}  // namespace glmd
