#include "tools/convert/row_encoder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>

#include "kernels/block_encoder.h"

namespace glmd {
namespace {

// What a thread reads and encodes at once: its float32 values stay in the second cache.
constexpr int64_t chunk_elements = int64_t{96} << 10;
// q8 scales are f16: amax / 127 must stay below 65504.
constexpr float quantised_magnitude_max = 8e6f;

// Puts the encoded rows from `begin` on where they belong in a matrix of `rows` rows: row scales,
// where the format has them, stand in front of all blocks.
void place_rows(BlockFormat format, const RowSource& source, int64_t rows, int64_t begin,
                int64_t end, std::span<const uint8_t> encoded, uint8_t* out) {
  const bool has_row_scales = format == BlockFormat::nl4 || format == BlockFormat::nl5;
  const int64_t own_scales = has_row_scales ? source.parts * padded_rows(end - begin) * 4 : 0;
  const int64_t all_scales = has_row_scales ? source.parts * padded_rows(rows) * 4 : 0;
  const int64_t scales_before = has_row_scales ? source.parts * begin * 4 : 0;
  const int64_t blocks_before = source.bytes(format, begin) - scales_before;
  std::memcpy(out + scales_before, encoded.data(), static_cast<size_t>(own_scales));
  std::memcpy(out + all_scales + blocks_before, encoded.data() + own_scales,
              encoded.size() - static_cast<size_t>(own_scales));
}

}  // namespace

int64_t RowSource::bytes(BlockFormat format, int64_t row_count) const {
  if (is_embedding) return row_count * embedding_row_bytes(format, columns);
  return parts * matrix_bytes(format, row_count, columns);
}

Error bad_value(const std::string& where, int64_t row) {
  return error(
      ErrorKind::bad_input,
      "{}: row {}: wanted finite values of a storable size, got NaN, infinity or more than {}",
      where, row, quantised_magnitude_max);
}

int64_t rows_holding(int64_t elements, int64_t columns) {
  return std::max(tile_rows, elements / columns / tile_rows * tile_rows);
}

struct RowEncoder::Failure {
  std::mutex mutex;
  int64_t row = std::numeric_limits<int64_t>::max();
  std::optional<Error> error;

  bool note(int64_t at_row, Error of_row) {
    const std::lock_guard lock(mutex);
    if (at_row < row) {
      row = at_row;
      error = std::move(of_row);
    }
    return false;
  }
};

bool RowEncoder::read_chunk(BlockFormat format, const RowSource& source, int64_t begin, int64_t end,
                            Scratch& scratch, Failure& failure) const {
  const int64_t rows = end - begin;
  const float magnitude_max =
      is_quantised(format) ? quantised_magnitude_max : std::numeric_limits<float>::max();
  scratch.values.resize(static_cast<size_t>(source.parts * rows * source.columns));
  for (int part = 0; part < source.parts; ++part) {
    float* values = scratch.values.data() + part * rows * source.columns;
    Result<void> got = source.read(part, begin, end, scratch.raw, values);
    if (!got.ok()) return failure.note(begin, std::move(got).error());
    for (int64_t row = 0; row < rows; ++row) {
      const float largest =
          kernels_.largest_magnitude(values + row * source.columns, source.columns);
      if (largest <= magnitude_max) continue;  // not so where it is NaN
      return failure.note(begin + row, bad_value(source.where, begin + row));
    }
  }
  return true;
}

// To scratch.encoded, as a matrix of its own.
bool RowEncoder::encode_chunk(BlockFormat format, const RowSource& source, int64_t begin,
                              int64_t end, Scratch& scratch, Failure& failure) const {
  if (!read_chunk(format, source, begin, end, scratch, failure)) return false;
  const int64_t rows = end - begin, columns = source.columns;
  const float* values = scratch.values.data();
  scratch.encoded.resize(static_cast<size_t>(source.bytes(format, rows)));
  uint8_t* encoded = scratch.encoded.data();
  if (source.is_embedding) {
    encode_embedding(format, values, rows, columns, encoded, kernels_);
  } else if (source.parts == 2) {
    encode_gate_up(format, values, values + rows * columns, rows, columns, encoded, kernels_);
  } else {
    encode_matrix(format, values, rows, columns, encoded, kernels_);
  }
  return true;
}

Result<void> RowEncoder::encode(BlockFormat format, const RowSource& source, int64_t first,
                                int64_t last, uint8_t* out) {
  const int64_t chunk_rows = rows_holding(chunk_elements, source.columns * source.parts);
  Failure failure;
  team_.run(last - first, tile_rows, [&](int64_t from, int64_t to, int thread) {
    Scratch& scratch = scratch_[static_cast<size_t>(thread)];
    for (int64_t begin = from; begin < to; begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, to);
      if (!encode_chunk(format, source, first + begin, first + end, scratch, failure)) return;
      place_rows(format, source, last - first, begin, end, scratch.encoded, out);
    }
  });
  if (failure.error) return std::move(*failure.error);
  return {};
}

}  // namespace glmd
