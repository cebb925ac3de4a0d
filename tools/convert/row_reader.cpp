#include "tools/convert/row_reader.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "kernels/kernel_table.h"

namespace glmd {
namespace {

// float8_e4m3fn: bias 7, no infinities, 0x7f and 0xff are NaN.
std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if ((code & 127) == 127) value = std::numeric_limits<float>::quiet_NaN();
    table[static_cast<size_t>(code)] = code >= 128 ? -value : value;
  }
  return table;
}
const std::array<float, 256> e4m3_table = make_e4m3_table();

uint16_t load_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void convert(const std::string& dtype, const uint8_t* raw, int64_t count, float* out) {
  if (dtype == "F32") {
    std::memcpy(out, raw, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == "BF16") {
    for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_u16(raw + 2 * i));
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = f16_to_f32(load_u16(raw + 2 * i));
  }
}

}  // namespace

Result<RowReader> RowReader::open(const Checkpoint& checkpoint, const MatrixSource& source) {
  RowReader reader(checkpoint, source);
  reader.element_bytes_ = dtype_bits(source.tensor->stored.dtype) / 8;
  if (source.scales == nullptr) return reader;

  const CheckpointConfig& config = checkpoint.config();
  const StoredTensor& stored = source.scales->stored;
  reader.scale_columns_ = config.scale_columns(source.columns);
  const int64_t last_row = (source.row_in_blocks + source.rows - 1) / config.scale_block_rows;
  const int64_t count = (last_row + 1) * reader.scale_columns_;
  const int64_t scale_bytes = dtype_bits(stored.dtype) / 8;
  std::vector<uint8_t> raw(static_cast<size_t>(count * scale_bytes));
  TRY(checkpoint.read(*source.scales, source.first_scale_row * reader.scale_columns_ * scale_bytes,
                      raw));
  reader.scales_.resize(static_cast<size_t>(count));
  convert(stored.dtype, raw.data(), count, reader.scales_.data());
  if (!std::isfinite(scalar_kernels().largest_magnitude(reader.scales_.data(), count))) {
    return error(ErrorKind::bad_input, "{}: tensor {}: wanted finite scales, got NaN or infinity",
                 checkpoint.path(*source.scales), stored.name);
  }
  return reader;
}

Result<void> RowReader::read(int64_t begin, int64_t end, std::vector<uint8_t>& raw,
                             float* out) const {
  const int64_t row_bytes = source_.columns * element_bytes_;
  raw.resize(static_cast<size_t>((end - begin) * row_bytes));
  TRY(checkpoint_.read(*source_.tensor, (source_.first_row + begin) * row_bytes, raw));
  for (int64_t row = begin; row < end; ++row) {
    const uint8_t* from = raw.data() + (row - begin) * row_bytes;
    float* to = out + (row - begin) * source_.columns;
    if (source_.scales != nullptr) {
      convert_fp8(row, from, to);
    } else {
      convert(source_.tensor->stored.dtype, from, source_.columns, to);
    }
  }
  return {};
}

void RowReader::convert_fp8(int64_t row, const uint8_t* codes, float* out) const {
  const CheckpointConfig& config = checkpoint_.config();
  const int64_t scale_row = (source_.row_in_blocks + row) / config.scale_block_rows;
  const float* scales = scales_.data() + scale_row * scale_columns_;
  for (int64_t begin = 0; begin < source_.columns; begin += config.scale_block_columns) {
    const int64_t end = std::min(begin + config.scale_block_columns, source_.columns);
    const float scale = scales[begin / config.scale_block_columns];
    for (int64_t i = begin; i < end; ++i) out[i] = e4m3_table[codes[i]] * scale;
  }
}

std::string RowReader::where() const {
  return fmt::format("{}: tensor {}", checkpoint_.path(*source_.tensor),
                     source_.tensor->stored.name);
}

}  // namespace glmd
