#include "kernels/block_encoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/scalar/math.h"
#include "platform/check.h"

namespace glmd {
namespace {

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void store_u16(uint8_t* out, uint16_t value) { std::memcpy(out, &value, sizeof value); }
void store_f32(uint8_t* out, float value) { std::memcpy(out, &value, sizeof value); }

void encode_floats(BlockFormat format, const float* values, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    switch (format) {
      case BlockFormat::f32: store_f32(out + 4 * i, values[i]); break;
      case BlockFormat::f16: store_u16(out + 2 * i, scalar::f32_to_f16(values[i])); break;
      default: store_u16(out + 2 * i, f32_to_bf16(values[i])); break;
    }
  }
}

// The nearest entry of a table of small integers. Midpoints are multiples of one half, so cells of one half
// answer exactly; on a midpoint the upper entry wins.
class NearestEntry {
 public:
  template <size_t n>
  explicit NearestEntry(const int8_t (&table)[n]) : table_(table) {
    for (int cell = 0; cell < cell_count; ++cell) {
      const double low = cell / 2.0 - 64.0;
      size_t best = n - 1;
      while (best > 0 && low < (table[best - 1] + table[best]) / 2.0) --best;
      nearest_[cell] = static_cast<uint8_t>(best);
    }
  }
  uint8_t operator()(float scaled) const {
    const float cell = (scaled + 64.0F) * 2.0F;
    if (!(cell > 0)) return nearest_[0];
    if (cell >= cell_count - 1) return nearest_[cell_count - 1];
    return nearest_[static_cast<int>(cell)];
  }
  float entry(uint8_t code) const { return static_cast<float>(table_[code]); }

 private:
  static constexpr int cell_count = 256;
  const int8_t* table_;
  uint8_t nearest_[cell_count];
};

struct TableSearch {
  NearestEntry nearest;
  float entry_max;  // magnitude that amax x factor is put on
  int factor_count;
  float factor_first, factor_last;

  float factor(int i) const {
    return factor_first + (factor_last - factor_first) * static_cast<float>(i) /
                              static_cast<float>(factor_count - 1);
  }
};

const TableSearch& search_of(BlockFormat format) {
  static const TableSearch nl4{NearestEntry(nl4_table), 63, 17, 0.60F, 1.08F};
  static const TableSearch nl5{NearestEntry(nl5_table), 63, 13, 0.75F, 1.06F};
  return format == BlockFormat::nl4 ? nl4 : nl5;
}

float squared_error(const TableSearch& search, const float* x, float scale) {
  const float inverse = 1.0F / scale;
  float sum = 0;
  for (int64_t i = 0; i < group_columns; ++i) {
    const float difference = x[i] - scale * search.nearest.entry(search.nearest(x[i] * inverse));
    sum += difference * difference;
  }
  return sum;
}

float magnitude_max(const float* x) {
  float amax = 0;
  for (int64_t i = 0; i < group_columns; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax;
}

// The best unrestricted scale of a group.
float best_scale(const TableSearch& search, const float* x) {
  const float amax = magnitude_max(x);
  if (amax < 1e-30F) return 0;
  float best = 0, best_error = INFINITY;
  for (int i = 0; i < search.factor_count; ++i) {
    for (const float sign : {1.0F, -1.0F}) {
      const float scale = sign * search.factor(i) * amax / search.entry_max;
      const float error = squared_error(search, x, scale);
      if (error < best_error) {
        best_error = error;
        best = scale;
      }
    }
  }
  return best;
}

// The best scale byte on the row's grid.
uint8_t best_scale_byte(const TableSearch& search, const float* x, float row_scale) {
  const float amax = magnitude_max(x);
  if (row_scale == 0 || amax < 1e-30F) return 0;
  uint8_t best = 0;
  float best_error = 0;  // of scale 0
  for (int64_t i = 0; i < group_columns; ++i) best_error += x[i] * x[i];
  int last = 0;
  for (int i = 0; i < search.factor_count; ++i) {
    const float wanted = search.factor(i) * amax / search.entry_max / row_scale;
    const int magnitude = std::clamp(static_cast<int>(std::nearbyintf(wanted)), 1, 127);
    if (magnitude == last) continue;
    last = magnitude;
    for (const int sign : {0, 128}) {
      const float scale = row_scale * static_cast<float>(sign != 0 ? -magnitude : magnitude);
      const float error = squared_error(search, x, scale);
      if (error < best_error) {
        best_error = error;
        best = static_cast<uint8_t>(magnitude + sign);
      }
    }
  }
  return best;
}

// One row, padded with zeros to whole groups.
std::vector<float> padded_row(const float* row, int64_t columns) {
  std::vector<float> padded(static_cast<size_t>(padded_columns(columns)));
  std::copy_n(row, columns, padded.begin());
  return padded;
}

// Writes row `row` of 8 of every block of its tile. `stride` is the distance of consecutive groups of that tile.
void encode_row_nl(BlockFormat format, const std::vector<float>& x, int64_t row, uint8_t* tile,
                   int64_t stride, float& row_scale) {
  const TableSearch& search = search_of(format);
  const auto groups = static_cast<int64_t>(x.size()) / group_columns;
  float largest = 0;
  for (int64_t group = 0; group < groups; ++group) {
    largest = std::max(largest, std::fabs(best_scale(search, x.data() + group * group_columns)));
  }
  row_scale = largest / 127.0F;
  for (int64_t group = 0; group < groups; ++group) {
    const float* values = x.data() + group * group_columns;
    uint8_t* block = tile + group * stride;
    const uint8_t byte = best_scale_byte(search, values, row_scale);
    block[row] = byte;
    const auto magnitude = static_cast<float>(byte & 127);
    const float scale = row_scale * ((byte & 128) != 0 ? -magnitude : magnitude);
    const float inverse = scale == 0 ? 0 : 1.0F / scale;
    for (int64_t column = 0; column < group_columns; ++column) {
      const uint8_t code = search.nearest(values[column] * inverse);
      const int64_t place = row * 4 + column % 4, vector = column / 4;
      uint8_t& nibbles = block[8 + vector / 2 * 32 + place];
      nibbles = static_cast<uint8_t>(nibbles | ((code & 15) << (vector % 2 * 4)));
      if (format == BlockFormat::nl5) {
        uint8_t& fifth = block[8 + 128 + place];
        fifth = static_cast<uint8_t>(fifth | ((code >> 4) << vector));
      }
    }
  }
}

// f16 scale and 32 codes of one group of q8.
float encode_group_q8(const float* x, int8_t* codes) {
  const uint16_t half = scalar::f32_to_f16(magnitude_max(x) / 127.0F);
  const float scale = scalar::f16_to_f32(half);
  for (int64_t i = 0; i < group_columns; ++i) {
    const float code = scale == 0 ? 0 : std::nearbyintf(x[i] / scale);
    codes[i] = static_cast<int8_t>(std::clamp(code, -127.0F, 127.0F));
  }
  return scale;
}

void encode_row_q8(const std::vector<float>& x, int64_t row, uint8_t* tile, int64_t stride) {
  const auto groups = static_cast<int64_t>(x.size()) / group_columns;
  for (int64_t group = 0; group < groups; ++group) {
    uint8_t* block = tile + group * stride;
    int8_t codes[group_columns];
    const float scale = encode_group_q8(x.data() + group * group_columns, codes);
    store_u16(block + 2 * row, scalar::f32_to_f16(scale));
    for (int64_t column = 0; column < group_columns; ++column) {
      block[16 + column / 4 * 32 + row * 4 + column % 4] = static_cast<uint8_t>(codes[column]);
    }
  }
}

// Where the parts of a quantised matrix lie: alone, or as one of the two of a gate-up pair.
struct Placement {
  int64_t part = 0, parts = 1;
};

void encode_quantised(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                      Placement placement, uint8_t* out) {
  const int64_t groups = padded_columns(columns) / group_columns;
  const int64_t stride = placement.parts * block_bytes(format);
  const bool has_row_scales = format != BlockFormat::q8;
  uint8_t* blocks = out + (has_row_scales ? placement.parts * padded_rows(rows) * 4 : 0);
  const std::vector<float> zeros(static_cast<size_t>(columns));
  for (int64_t row = 0; row < padded_rows(rows); ++row) {
    const int64_t tile = row / tile_rows, in_tile = row % tile_rows;
    uint8_t* first = blocks + tile * groups * stride + placement.part * block_bytes(format);
    const std::vector<float> x =
        padded_row(row < rows ? values + row * columns : zeros.data(), columns);
    if (!has_row_scales) {
      encode_row_q8(x, in_tile, first, stride);
      continue;
    }
    float row_scale = 0;
    encode_row_nl(format, x, in_tile, first, stride, row_scale);
    store_f32(out + ((tile * placement.parts + placement.part) * tile_rows + in_tile) * 4,
              row_scale);
  }
}

}  // namespace

void encode_matrix(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                   uint8_t* out) {
  if (!is_quantised(format)) return encode_floats(format, values, rows * columns, out);
  std::memset(out, 0, static_cast<size_t>(matrix_bytes(format, rows, columns)));
  encode_quantised(format, values, rows, columns, {}, out);
}

void encode_gate_up(BlockFormat format, const float* gate, const float* up, int64_t rows_each,
                    int64_t columns, uint8_t* out) {
  if (!is_quantised(format)) {
    encode_floats(format, gate, rows_each * columns, out);
    encode_floats(format, up, rows_each * columns, out + matrix_bytes(format, rows_each, columns));
    return;
  }
  std::memset(out, 0, static_cast<size_t>(gate_up_bytes(format, rows_each, columns)));
  encode_quantised(format, gate, rows_each, columns, {.part = 0, .parts = 2}, out);
  encode_quantised(format, up, rows_each, columns, {.part = 1, .parts = 2}, out);
}

void encode_embedding(BlockFormat format, const float* values, int64_t rows, int64_t columns,
                      uint8_t* out) {
  if (!is_quantised(format)) return encode_floats(format, values, rows * columns, out);
  CHECK(format == BlockFormat::q8);
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> x = padded_row(values + row * columns, columns);
    for (size_t i = 0; i < x.size(); i += group_columns, out += 34) {
      int8_t codes[group_columns];
      store_u16(out, scalar::f32_to_f16(encode_group_q8(x.data() + i, codes)));
      std::memcpy(out + 2, codes, sizeof codes);
    }
  }
}

void decode_matrix(BlockFormat format, const uint8_t* stored, int64_t rows, int64_t columns,
                   float* values) {
  // Columns of the identity come out as the matrix itself: the kernels' own reading of the bytes.
  const KernelTable& kernels = scalar_kernels();
  const Matrix matrix{stored, rows, columns, format};
  const int64_t padded = padded_columns(columns), groups = padded / group_columns;
  std::vector<float> x(static_cast<size_t>(padded)), y(static_cast<size_t>(rows));
  std::vector<int8_t> codes(static_cast<size_t>(padded));
  std::vector<float> scales(static_cast<size_t>(groups), 1.0F);
  std::vector<int32_t> sums(static_cast<size_t>(groups));
  for (int64_t column = 0; column < columns; ++column) {
    x[column] = 1;
    codes[column] = 1;
    sums[column / group_columns] = 1;
    const Activations one{.values = x.data(),
                          .value_stride = padded,
                          .codes = codes.data(),
                          .scales = scales.data(),
                          .sums = sums.data(),
                          .row_count = 1,
                          .columns = columns};
    kernels.matmul[static_cast<int>(format)](matrix, one, y.data(), rows, 0, rows);
    for (int64_t row = 0; row < rows; ++row) values[row * columns + column] = y[row];
    x[column] = 0;
    codes[column] = 0;
    sums[column / group_columns] = 0;
  }
}

}  // namespace glmd
