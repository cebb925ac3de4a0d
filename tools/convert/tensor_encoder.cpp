#include "tools/convert/tensor_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/block_encoder.h"
#include "tools/convert/tensor_sink.h"

namespace glmd {
namespace {

constexpr int64_t band_elements = int64_t{16} << 20;
// q8 scales are f16: amax / 127 must stay below 65504.
constexpr float quantised_magnitude_max = 8e6f;

// A matrix to encode: rows from one reader, or from gate and up side by side.
struct Rows {
  int64_t rows = 0, columns = 0;
  std::function<Result<void>(int64_t begin, int64_t end)> load;
  // Of gate (part 0) or up (part 1); false where a value cannot be stored. Thread: any.
  std::function<bool(int part, int64_t row, float* out)> fill;
  int parts = 1;
  bool is_embedding = false;
};

bool fits(BlockFormat format, const float* values, int64_t count) {
  if (!is_quantised(format)) return true;
  return std::all_of(values, values + count,
                     [](float value) { return std::fabs(value) <= quantised_magnitude_max; });
}

int64_t part_bytes(BlockFormat format, const Rows& source, int64_t rows) {
  if (source.is_embedding) return rows * embedding_row_bytes(format, source.columns);
  return source.parts * matrix_bytes(format, rows, source.columns);
}

// Encodes rows [begin, end) as a matrix of their own.
std::vector<uint8_t> encode_rows(BlockFormat format, const Rows& source, int64_t begin, int64_t end,
                                 std::atomic<int64_t>& bad_row) {
  const int64_t rows = end - begin;
  std::vector<float> values(static_cast<size_t>(source.parts * rows * source.columns));
  for (int part = 0; part < source.parts; ++part) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = values.data() + (part * rows + row - begin) * source.columns;
      if (source.fill(part, row, out) && fits(format, out, source.columns)) continue;
      int64_t seen = bad_row.load();
      while (row < seen && !bad_row.compare_exchange_weak(seen, row)) {
      }
      return {};
    }
  }
  std::vector<uint8_t> encoded(static_cast<size_t>(part_bytes(format, source, rows)));
  if (source.is_embedding) {
    encode_embedding(format, values.data(), rows, source.columns, encoded.data());
  } else if (source.parts == 2) {
    encode_gate_up(format, values.data(), values.data() + rows * source.columns, rows,
                   source.columns, encoded.data());
  } else {
    encode_matrix(format, values.data(), rows, source.columns, encoded.data());
  }
  return encoded;
}

// Puts the encoded rows from `begin` on where they belong in a matrix of `rows` rows: row scales,
// where the format has them, stand in front of all blocks.
void place_rows(BlockFormat format, const Rows& source, int64_t rows, int64_t begin, int64_t end,
                std::span<const uint8_t> encoded, uint8_t* out) {
  const bool has_row_scales = format == BlockFormat::nl4 || format == BlockFormat::nl5;
  const int64_t own_scales = has_row_scales ? source.parts * padded_rows(end - begin) * 4 : 0;
  const int64_t all_scales = has_row_scales ? source.parts * padded_rows(rows) * 4 : 0;
  const int64_t scales_before = has_row_scales ? source.parts * begin * 4 : 0;
  const int64_t blocks_before = part_bytes(format, source, begin) - scales_before;
  std::memcpy(out + scales_before, encoded.data(), static_cast<size_t>(own_scales));
  std::memcpy(out + all_scales + blocks_before, encoded.data() + own_scales,
              encoded.size() - static_cast<size_t>(own_scales));
}

// Encodes rows [first, last) of `source`, as a matrix of last - first rows, into `out`, band by
// band.
Result<int64_t> encode_bands(Team& team, BlockFormat format, const Rows& source, int64_t first,
                             int64_t last, uint8_t* out) {
  std::atomic<int64_t> bad_row{last};
  const int64_t band_rows = std::max<int64_t>(
      tile_rows, band_elements / (source.columns * source.parts) / tile_rows * tile_rows);
  for (int64_t begin = first; begin < last; begin += band_rows) {
    const int64_t end = std::min(begin + band_rows, last);
    TRY(source.load(begin, end));
    team.run(end - begin, tile_rows, [&](int64_t from, int64_t to, int) {
      if (from == to) return;
      const std::vector<uint8_t> encoded =
          encode_rows(format, source, begin + from, begin + to, bad_row);
      if (encoded.empty()) return;
      place_rows(format, source, last - first, begin - first + from, begin - first + to, encoded,
                 out);
    });
    if (bad_row < last) break;
  }
  return bad_row == last ? -1 : bad_row.load();
}

Error bad_value(const std::string& where, int64_t row) {
  return error(
      ErrorKind::bad_input,
      "{}: row {}: wanted finite values of a storable size, got NaN, infinity or more than {}",
      where, row, quantised_magnitude_max);
}

Result<void> encode_whole(Team& team, BlockFormat format, const Rows& source,
                          const std::string& where, uint8_t* out) {
  const int64_t bad_row = TRY(encode_bands(team, format, source, 0, source.rows, out));
  if (bad_row >= 0) return bad_value(where, bad_row);
  return {};
}

// Formats without row scales are the concatenation of their bands.
Result<void> encode_streaming(Team& team, BlockFormat format, const Rows& source,
                              const std::string& where, TensorSink& sink) {
  const int64_t band_rows =
      std::max<int64_t>(tile_rows, band_elements / source.columns / tile_rows * tile_rows);
  std::vector<uint8_t> band;
  for (int64_t begin = 0; begin < source.rows; begin += band_rows) {
    const int64_t end = std::min(begin + band_rows, source.rows);
    band.assign(static_cast<size_t>(part_bytes(format, source, end - begin)), 0);
    const int64_t bad_row = TRY(encode_bands(team, format, source, begin, end, band.data()));
    if (bad_row >= 0) return bad_value(where, bad_row);
    TRY(sink.append(band));
  }
  return {};
}

Rows rows_of(RowReader& reader) {
  return {.rows = reader.source().rows,
          .columns = reader.source().columns,
          .load = [&reader](int64_t begin, int64_t end) { return reader.load(begin, end); },
          .fill = [&reader](int, int64_t row, float* out) { return reader.fill(row, out); }};
}

Rows rows_of(RowReader& gate, RowReader& up) {
  Rows rows = rows_of(gate);
  rows.parts = 2;
  rows.load = [&gate, &up](int64_t begin, int64_t end) -> Result<void> {
    TRY(gate.load(begin, end));
    return up.load(begin, end);
  };
  rows.fill = [&gate, &up](int part, int64_t row, float* out) {
    return (part == 0 ? gate : up).fill(row, out);
  };
  return rows;
}

// kv_b, whole, in float32: per head `nope` rows of keys, then `v` rows of values, each of kv_lora
// columns.
class KvB {
 public:
  static Result<KvB> load(RowReader& reader, const CheckpointConfig& config) {
    KvB kv_b(config);
    const MatrixSource& source = reader.source();
    kv_b.values_.resize(static_cast<size_t>(source.rows * source.columns));
    TRY(reader.load(0, source.rows));
    for (int64_t row = 0; row < source.rows; ++row) {
      if (!reader.fill(row, kv_b.values_.data() + row * source.columns))
        return bad_value(reader.where(), row);
    }
    return kv_b;
  }

  // Row h * kv_lora + c of k_b: column c of head h's keys.
  void fill_k(int64_t row, float* out) const {
    const int64_t head = row / config_.kv_lora_rank, column = row % config_.kv_lora_rank;
    const float* keys = head_values(head) + column;
    for (int64_t i = 0; i < config_.qk_nope_head_dim; ++i) out[i] = keys[i * config_.kv_lora_rank];
  }
  // Row h * v_head_dim + i of v_b.
  void fill_v(int64_t row, float* out) const {
    const int64_t head = row / config_.v_head_dim, i = row % config_.v_head_dim;
    const float* values = head_values(head) + (config_.qk_nope_head_dim + i) * config_.kv_lora_rank;
    std::copy(values, values + config_.kv_lora_rank, out);
  }

 private:
  explicit KvB(const CheckpointConfig& config) : config_(config) {}
  const float* head_values(int64_t head) const {
    return values_.data() +
           head * (config_.qk_nope_head_dim + config_.v_head_dim) * config_.kv_lora_rank;
  }
  const CheckpointConfig& config_;
  std::vector<float> values_;
};

}  // namespace

Result<uint64_t> TensorEncoder::write(const PlannedTensor& tensor, SafetensorsWriter& writer,
                                      int64_t offset) {
  const InventoryEntry& entry = tensor.entry;
  const BlockFormat format = tensor.format;
  std::vector<RowReader> readers;
  for (const MatrixSource& source : tensor.sources)
    readers.push_back(TRY(RowReader::open(checkpoint_, source)));
  TensorSink sink(writer, offset);
  const std::string where = readers[0].where();

  if (entry.layout == TensorLayout::matrix || entry.layout == TensorLayout::embedding ||
      entry.layout == TensorLayout::vector) {
    Rows rows = rows_of(readers[0]);
    rows.is_embedding = entry.layout == TensorLayout::embedding;
    std::unique_ptr<KvB> kv_b;
    const bool is_k_b = entry.name.ends_with("attention.k_b");
    if (is_k_b || entry.name.ends_with("attention.v_b")) {
      kv_b = std::make_unique<KvB>(TRY(KvB::load(readers[0], checkpoint_.config())));
      rows.rows = entry.rows;
      rows.columns = entry.columns;
      rows.load = [](int64_t, int64_t) -> Result<void> { return {}; };
      rows.fill = [&kv_b, is_k_b](int, int64_t row, float* out) {
        is_k_b ? kv_b->fill_k(row, out) : kv_b->fill_v(row, out);
        return true;
      };
    }
    if (format != BlockFormat::nl4 && format != BlockFormat::nl5) {
      TRY(encode_streaming(team_, format, rows, where, sink));
      return sink.hash();
    }
    std::vector<uint8_t> encoded(static_cast<size_t>(tensor.bytes));
    TRY(encode_whole(team_, format, rows, where, encoded.data()));
    TRY(sink.append(encoded));
    return sink.hash();
  }

  std::vector<uint8_t> encoded(static_cast<size_t>(tensor.bytes));
  if (is_quantised(format)) {
    const std::string both = where + " and " + tensor.sources[1].tensor->stored.name;
    TRY(encode_whole(team_, format, rows_of(readers[0], readers[1]), both, encoded.data()));
  } else {
    TRY(encode_whole(team_, format, rows_of(readers[0]), where, encoded.data()));
    TRY(encode_whole(team_, format, rows_of(readers[1]), readers[1].where(),
                     encoded.data() + matrix_bytes(format, entry.rows, entry.columns)));
  }
  if (entry.layout == TensorLayout::expert) {
    TRY(encode_whole(team_, format, rows_of(readers[2]), readers[2].where(),
                     encoded.data() + expert_down_offset(format, entry.rows, entry.columns)));
  }
  TRY(sink.append(encoded));
  return sink.hash();
}

}  // namespace glmd
