#include "tools/convert/tensor_encoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "tools/convert/tensor_sink.h"

namespace glmd {
namespace {

constexpr int64_t band_elements = int64_t{16} << 20;

// kv_b, whole, in float32: per head `nope` rows of keys, then `v` rows of values, each of kv_lora
// columns.
class KvB {
 public:
  static Result<KvB> load(const RowReader& reader, const CheckpointConfig& config,
                          const KernelTable& kernels) {
    KvB kv_b(config);
    const MatrixSource& source = reader.source();
    kv_b.values_.resize(static_cast<size_t>(source.rows * source.columns));
    std::vector<uint8_t> raw;
    TRY(reader.read(0, source.rows, raw, kv_b.values_.data()));
    for (int64_t row = 0; row < source.rows; ++row) {
      const float* values = kv_b.values_.data() + row * source.columns;
      if (!std::isfinite(kernels.largest_magnitude(values, source.columns)))
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

RowSource source_of(const RowReader& reader) {
  return {.where = reader.where(),
          .rows = reader.source().rows,
          .columns = reader.source().columns,
          .read = [&reader](int, int64_t begin, int64_t end, std::vector<uint8_t>& raw,
                            float* out) { return reader.read(begin, end, raw, out); }};
}

RowSource source_of(const RowReader& gate, const RowReader& up) {
  RowSource both = source_of(gate);
  both.where += " and " + up.source().tensor->stored.name;
  both.parts = 2;
  both.read = [&gate, &up](int part, int64_t begin, int64_t end, std::vector<uint8_t>& raw,
                           float* out) {
    return (part == 0 ? gate : up).read(begin, end, raw, out);
  };
  return both;
}

// k_b or v_b, which `kv_b` holds.
RowSource source_of(const KvB& kv_b, const InventoryEntry& entry, const RowReader& reader) {
  const bool is_k_b = entry.name.ends_with("attention.k_b");
  return {.where = reader.where(),
          .rows = entry.rows,
          .columns = entry.columns,
          .read = [&kv_b, is_k_b, columns = entry.columns](int, int64_t begin, int64_t end,
                                                           std::vector<uint8_t>&,
                                                           float* out) -> Result<void> {
            for (int64_t row = begin; row < end; ++row, out += columns)
              is_k_b ? kv_b.fill_k(row, out) : kv_b.fill_v(row, out);
            return {};
          }};
}

}  // namespace

// Formats without row scales are the concatenation of their bands.
Result<void> TensorEncoder::encode_bands(BlockFormat format, const RowSource& source,
                                         const Write& write) {
  const bool has_row_scales = format == BlockFormat::nl4 || format == BlockFormat::nl5;
  const int64_t band_rows =
      has_row_scales ? source.rows : rows_holding(band_elements, source.columns);
  for (int64_t begin = 0; begin < source.rows; begin += band_rows) {
    const int64_t end = std::min(begin + band_rows, source.rows);
    std::vector<uint8_t> band(static_cast<size_t>(source.bytes(format, end - begin)));
    TRY(rows_.encode(format, source, begin, end, band.data()));
    TRY(write(std::move(band)));
  }
  return {};
}

// A matrix, an embedding or a vector.
Result<void> TensorEncoder::encode_single(const PlannedTensor& tensor, const RowReader& reader,
                                          const Write& write) {
  const InventoryEntry& entry = tensor.entry;
  if (entry.name.ends_with("attention.k_b") || entry.name.ends_with("attention.v_b")) {
    const KvB kv_b = TRY(KvB::load(reader, checkpoint_.config(), kernels_));
    return encode_bands(tensor.format, source_of(kv_b, entry, reader), write);
  }
  RowSource source = source_of(reader);
  source.is_embedding = entry.layout == TensorLayout::embedding;
  return encode_bands(tensor.format, source, write);
}

// Gate and up, and down where it is an expert.
Result<void> TensorEncoder::encode_several(const PlannedTensor& tensor,
                                           const std::vector<RowReader>& readers,
                                           const Write& write) {
  const InventoryEntry& entry = tensor.entry;
  std::vector<uint8_t> encoded(static_cast<size_t>(tensor.bytes));
  const auto encode_at = [&](int64_t offset, const RowSource& source) {
    return rows_.encode(tensor.format, source, 0, source.rows, encoded.data() + offset);
  };
  if (is_quantised(tensor.format)) {
    TRY(encode_at(0, source_of(readers[0], readers[1])));
  } else {
    TRY(encode_at(0, source_of(readers[0])));
    TRY(encode_at(matrix_bytes(tensor.format, entry.rows, entry.columns), source_of(readers[1])));
  }
  if (entry.layout == TensorLayout::expert) {
    TRY(encode_at(expert_down_offset(tensor.format, entry.rows, entry.columns),
                  source_of(readers[2])));
  }
  return write(std::move(encoded));
}

Result<void> TensorEncoder::encode(const PlannedTensor& tensor, SafetensorsWriter& writer,
                                   int64_t offset, uint64_t& hash) {
  std::vector<RowReader> readers;
  for (const MatrixSource& source : tensor.sources)
    readers.push_back(TRY(RowReader::open(checkpoint_, source)));
  const auto sink = std::make_shared<TensorSink>(writer, offset);
  const auto write = [&](std::vector<uint8_t> bytes) {
    const int64_t count = std::ssize(bytes);
    return writes_.add(count, [sink, held = std::move(bytes)] { return sink->append(held); });
  };
  const TensorLayout layout = tensor.entry.layout;
  const bool has_several = layout == TensorLayout::gate_up || layout == TensorLayout::expert;
  TRY(has_several ? encode_several(tensor, readers, write)
                  : encode_single(tensor, readers[0], write));
  return writes_.add(0, [sink, &hash]() -> Result<void> {
    hash = sink->hash();
    return {};
  });
}

}  // namespace glmd
