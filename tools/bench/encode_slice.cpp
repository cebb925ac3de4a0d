#include "encode_slice.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "platform/file.h"
#include "platform/random.h"
#include "storage/safetensors.h"
#include "storage/tensor_inventory.h"
#include "tools/convert/source_names.h"
#include "tools/make-model/geometry.h"

namespace glmd {
namespace {

constexpr int64_t scale_block = 128;
constexpr int64_t pool_bytes = int64_t{1} << 24;

// The nearest e4m3 of a magnitude from 0 to 448, with its sign.
uint8_t e4m3_code(float value) {
  const float magnitude = std::min(std::fabs(value), 448.0f);
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  // 8 eighths begin the normal values, and 16 carry into the next exponent by themselves.
  const int code = magnitude < 0x1p-6f ? eighths : (exponent + 6) * 8 + eighths;
  return static_cast<uint8_t>(value < 0 ? code | 128 : code);
}

// Codes of weights whose largest of 16,384 is the largest of e4m3.
std::vector<uint8_t> make_pool() {
  std::vector<uint8_t> pool(pool_bytes);
  SplitMix random(1);
  for (uint8_t& code : pool) {
    float sum = 0;  // of 12 uniform draws: deviation 1
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(unit_interval(random.next())) - 0.5f;
    code = e4m3_code(sum * 110.0f);
  }
  return pool;
}

Json make_slice_config(const Json& geometry) {
  Json config = geometry;
  const Json side = Json::integer(scale_block);
  config.set("quantization_config",
             Json::object({{"quant_method", Json::string("fp8")},
                           {"weight_block_size", Json::array({side, side})}}));
  return config;
}

StoredTensor tensor_of(std::string name, const char* dtype, std::vector<int64_t> shape) {
  StoredTensor tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  tensor.bytes = dtype_bits(dtype) / 8;
  for (const int64_t size : tensor.shape) tensor.bytes *= size;
  return tensor;
}

struct Shape {
  int64_t rows, columns;
};

// Of the checkpoint's `index`-th tensor for an entry.
Shape source_shape(const CheckpointConfig& config, const InventoryEntry& entry, size_t index) {
  if (entry.name.ends_with("attention.k_b") || entry.name.ends_with("attention.v_b"))
    return {config.heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank};
  if (index == 2) return {entry.columns, entry.rows};  // down
  return {entry.rows, entry.columns};
}

int64_t blocks_in(int64_t size) {
  return (size + scale_block - 1) / scale_block;
}

// FP8 with scales, but for what checkpoints keep in BF16.
std::vector<StoredTensor> list_slice(const CheckpointConfig& config) {
  std::vector<StoredTensor> tensors;
  std::set<std::string> names;  // k_b and v_b have one source
  for (const InventoryEntry& entry : list_tensors(config)) {
    const bool is_fp8 = entry.kind == TensorKind::routed_expert ||
                        entry.kind == TensorKind::projection || entry.kind == TensorKind::indexer;
    const std::vector<std::string> sources = source_names(entry);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!names.insert(sources[i]).second) continue;
      const auto [rows, columns] = source_shape(config, entry, i);
      if (entry.layout == TensorLayout::vector) {
        tensors.push_back(tensor_of(sources[i], "F32", {columns}));
        continue;
      }
      tensors.push_back(tensor_of(sources[i], is_fp8 ? "F8_E4M3" : "BF16", {rows, columns}));
      if (!is_fp8) continue;
      tensors.push_back(
          tensor_of(sources[i] + "_scale_inv", "F32", {blocks_in(rows), blocks_in(columns)}));
    }
  }
  return tensors;
}

}  // namespace

Result<void> write_encode_slice(const std::string& folder, int64_t experts) {
  const Json geometry = TRY(make_config(
      {.preset = "glm52-slice", .layers = {"moe"}, .experts = experts, .vocabulary = 1024}));
  const Json config = make_slice_config(geometry);
  TRY(write_file_atomically(folder + "/config.json", config.to_string() + "\n"));
  std::vector<StoredTensor> tensors =
      list_slice(TRY(CheckpointConfig::parse(config, folder + "/config.json")));
  SafetensorsWriter writer = TRY(SafetensorsWriter::create(folder + "/model.safetensors", tensors));
  const std::vector<uint8_t> pool = make_pool();
  const std::vector<float> scales(pool_bytes / 4, 1e-4f);
  const auto* scale_bytes = reinterpret_cast<const uint8_t*>(scales.data());
  for (const StoredTensor& tensor : tensors) {
    // Scales and norms are all alike; read as BF16 they are two values of a usable size.
    const uint8_t* from = tensor.dtype == "F8_E4M3" ? pool.data() : scale_bytes;
    for (int64_t at = 0; at < tensor.bytes; at += pool_bytes) {
      const int64_t count = std::min(pool_bytes, tensor.bytes - at);
      TRY(writer.write_at(tensor.offset + at, {from, static_cast<size_t>(count)}));
    }
  }
  return writer.sync();
}

}  // namespace glmd
