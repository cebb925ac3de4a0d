#include "tools/make-model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/block_encoder.h"
#include "platform/random.h"
#include "storage/manifest.h"

namespace glmd {
namespace {

constexpr int64_t pool_units = 4096;
constexpr int64_t chunk_units = 4096;  // drawn from one generator
constexpr int64_t band_chunks = 64;

// Nearly normal, of deviation 1: eight uniform draws added.
float bell_value(SplitMix& random) {
  int64_t sum = 0;
  for (int i = 0; i < 2; ++i) {
    uint64_t bits = random.next();
    for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<int64_t>(bits & 0xffff);
  }
  const float mean = 8 * 65535 / 2.0F;
  return (static_cast<float>(sum) - mean) / (65536 * 0.81649658F);
}

// Between 0.7 and 1.3.
float size_factor(SplitMix& random) {
  return 0.7F + 0.6F * static_cast<float>(unit_interval(random.next()));
}

// Rows of values whose groups differ in size, as those of trained weights do.
std::vector<float> weight_values(SplitMix& random, int64_t count, float deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t begin = 0; begin < count; begin += group_columns) {
    const float size = deviation * size_factor(random);
    for (int64_t i = begin; i < std::min(begin + group_columns, count); ++i)
      values[static_cast<size_t>(i)] = size * bell_value(random);
  }
  return values;
}

bool has_row_scales(BlockFormat format) {
  return format == BlockFormat::nl4 || format == BlockFormat::nl5;
}

}  // namespace

const RandomWeights::Pool& RandomWeights::pool(const PoolKey& key) {
  const auto found = pools_.find(key);
  if (found != pools_.end()) return found->second;
  SplitMix random(philox_bits(seed_, pools_.size()));
  Pool& pool = pools_[key];
  if (key.columns <= 0) {
    pool.unit_bytes = 4;
    std::vector<float> values(pool_units);
    for (float& value : values)
      value = key.columns == around_1 ? 1 + 0.1F * bell_value(random) : 0.01F * bell_value(random);
    pool.units.resize(pool_units * 4);
    std::memcpy(pool.units.data(), values.data(), pool.units.size());
    return pool;
  }
  const float deviation = 1 / std::sqrt(static_cast<float>(key.columns));
  const int64_t columns = pool_units * group_columns;
  if (key.is_embedding || !is_quantised(key.format)) {  // row-major
    const std::vector<float> values = weight_values(random, columns, deviation);
    pool.unit_bytes = embedding_row_bytes(key.format, group_columns);
    pool.units.resize(static_cast<size_t>(pool_units * pool.unit_bytes));
    encode_embedding(key.format, values.data(), 1, columns, pool.units.data());
    return pool;
  }
  // One tile of rows, as wide as there are blocks.
  const std::vector<float> values = weight_values(random, tile_rows * columns, deviation);
  std::vector<uint8_t> encoded(static_cast<size_t>(matrix_bytes(key.format, tile_rows, columns)));
  encode_matrix(key.format, values.data(), tile_rows, columns, encoded.data());
  pool.unit_bytes = block_bytes(key.format);
  pool.units.assign(encoded.end() - pool_units * pool.unit_bytes, encoded.end());
  if (has_row_scales(key.format)) std::memcpy(&pool.row_scale, encoded.data(), 4);
  return pool;
}

const RandomWeights::Pool& RandomWeights::scale_pool(BlockFormat format, int64_t columns) {
  const auto found = scale_pools_.find({format, columns});
  if (found != scale_pools_.end()) return found->second;
  const float row_scale = pool({format, /*is_embedding=*/false, /*columns=*/1}).row_scale /
                          std::sqrt(static_cast<float>(columns));
  SplitMix random(philox_bits(seed_, static_cast<uint64_t>(columns)));
  Pool& scales = scale_pools_[{format, columns}];
  scales.unit_bytes = 4;
  scales.units.resize(pool_units * 4);
  for (int64_t i = 0; i < pool_units; ++i) {
    const float scale = row_scale * size_factor(random);
    std::memcpy(scales.units.data() + i * 4, &scale, 4);
  }
  return scales;
}

void RandomWeights::add(int64_t bytes, const Pool& pool, std::vector<Segment>& out) const {
  out.push_back({.bytes = bytes,
                 .pool = &pool,
                 .key = philox_bits(tensor_key_, static_cast<uint64_t>(out.size()))});
}

// `parts` matrices of that shape in one: gate and up.
void RandomWeights::add_matrix(BlockFormat format, int64_t rows, int64_t columns, int parts,
                               std::vector<Segment>& out) {
  const int64_t bytes = parts * matrix_bytes(format, rows, columns);
  if (!has_row_scales(format)) return add(bytes, pool({format, false, columns}), out);
  // The blocks are those of deviation 1: the row scales know better.
  const int64_t scale_bytes = parts * padded_rows(rows) * 4;
  add(scale_bytes, scale_pool(format, columns), out);
  add(bytes - scale_bytes, pool({format, false, 1}), out);
}

std::vector<RandomWeights::Segment> RandomWeights::segments(const PlannedTensor& tensor) {
  const InventoryEntry& entry = tensor.entry;
  const std::span<const char> name(entry.name);
  tensor_key_ =
      philox_bits(seed_, hash_bytes({reinterpret_cast<const uint8_t*>(name.data()), name.size()}));
  std::vector<Segment> out;
  switch (entry.layout) {
    case TensorLayout::vector: {
      const int64_t kind = entry.name.ends_with("bias") ? around_0 : around_1;
      add(tensor.bytes, pool({BlockFormat::f32, false, kind}), out);
      break;
    }
    case TensorLayout::embedding:
      add(tensor.bytes, pool({tensor.format, /*is_embedding=*/true, 1}), out);
      break;
    case TensorLayout::matrix:
      add_matrix(tensor.format, entry.rows, entry.columns, 1, out);
      break;
    case TensorLayout::gate_up:
      add_matrix(tensor.format, entry.rows, entry.columns, 2, out);
      break;
    case TensorLayout::expert: {
      add_matrix(tensor.format, entry.rows, entry.columns, 2, out);
      const int64_t down = expert_down_offset(tensor.format, entry.rows, entry.columns);
      out.push_back({.bytes = down - gate_up_bytes(tensor.format, entry.rows, entry.columns)});
      add_matrix(tensor.format, entry.columns, entry.rows, 1, out);
      out.push_back(
          {.bytes = tensor.bytes - down - matrix_bytes(tensor.format, entry.columns, entry.rows)});
      break;
    }
  }
  return out;
}

int64_t RandomWeights::band_bytes(const Segment& segment) {
  return band_chunks * chunk_units * (segment.pool == nullptr ? 1 : segment.pool->unit_bytes);
}

void RandomWeights::fill(const Segment& segment, int64_t begin, std::span<uint8_t> out) {
  CHECK(begin % band_bytes(segment) == 0);
  if (segment.pool == nullptr) {
    std::fill(out.begin(), out.end(), uint8_t{0});
    return;
  }
  const Pool& pool = *segment.pool;
  const int64_t chunk_bytes = chunk_units * pool.unit_bytes;
  const auto bytes = static_cast<int64_t>(out.size());
  team_.run((bytes + chunk_bytes - 1) / chunk_bytes, 1, [&](int64_t from, int64_t to, int) {
    for (int64_t chunk = from; chunk < to; ++chunk) {
      SplitMix random(segment.key + static_cast<uint64_t>(begin / chunk_bytes + chunk));
      const int64_t end = std::min((chunk + 1) * chunk_bytes, bytes);
      for (int64_t at = chunk * chunk_bytes; at < end; at += pool.unit_bytes) {
        const int64_t unit = random.below(pool.count());
        std::memcpy(out.data() + at, pool.units.data() + unit * pool.unit_bytes,
                    static_cast<size_t>(std::min(pool.unit_bytes, end - at)));
      }
    }
  });
}

}  // namespace glmd
