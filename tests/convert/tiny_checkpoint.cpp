#include "tests/convert/tiny_checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/half.h"

namespace glmd::test {
namespace {

constexpr const char* config_text = R"({
  "model_type": "glm_moe_dsa", "hidden_size": 16, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 1, "vocab_size": 24, "max_position_embeddings": 64,
  "num_attention_heads": 2, "q_lora_rank": 10, "kv_lora_rank": 9, "qk_nope_head_dim": 6,
  "qk_rope_head_dim": 4, "v_head_dim": 5, "rms_norm_eps": 1e-5,
  "rope_parameters": {"rope_theta": 10000, "rope_type": "default"},
  "intermediate_size": 20, "moe_intermediate_size": 12, "n_routed_experts": 4,
  "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
  "routed_scaling_factor": 2.5, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4,
  "indexer_types": ["full", "shared"], "eos_token_id": [1, 2], "head_dim": 999,
  "quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}})";

int64_t element_bytes(const std::string& dtype) {
  return dtype == "F32" ? 4 : dtype == "F8_E4M3" || dtype == "U8" ? 1 : 2;
}

uint32_t next_random(uint32_t& state) {
  state = state * 1664525 + 1013904223;
  return state >> 8;
}

float fp8_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 512
                                        : static_cast<float>(8 + mantissa) *
                                              std::exp2f(static_cast<float>(exponent - 10));
  return code >= 128 ? -magnitude : magnitude;
}

}  // namespace

TinyCheckpoint TinyCheckpoint::make(const std::string& dtype, int experts) {
  TinyCheckpoint tiny;
  tiny.config = parse_json(config_text, "config").value();
  tiny.config.set("n_routed_experts", Json::integer(experts));
  const std::string plain = dtype == "F8_E4M3" ? "BF16" : dtype;
  tiny.add("model.embed_tokens.weight", plain, {24, 16});
  tiny.add("lm_head.weight", plain, {24, 16});
  tiny.add("model.norm.weight", plain, {16});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string attention = prefix + "self_attn.";
    tiny.add(prefix + "input_layernorm.weight", plain, {16});
    tiny.add(prefix + "post_attention_layernorm.weight", plain, {16});
    tiny.add_weight(attention + "q_a_proj.weight", dtype, 10, 16);
    tiny.add(attention + "q_a_layernorm.weight", plain, {10});
    tiny.add_weight(attention + "q_b_proj.weight", dtype, 20, 10);
    tiny.add_weight(attention + "kv_a_proj_with_mqa.weight", dtype, 13, 16);
    tiny.add(attention + "kv_a_layernorm.weight", plain, {9});
    tiny.add_weight(attention + "kv_b_proj.weight", dtype, 22, 9);
    tiny.add_weight(attention + "o_proj.weight", dtype, 16, 10);
    if (layer != 1) {
      tiny.add_weight(attention + "indexer.wq_b.weight", dtype, 16, 10);
      tiny.add_weight(attention + "indexer.wk.weight", dtype, 8, 16);
      tiny.add(attention + "indexer.k_norm.weight", plain, {8});
      tiny.add(attention + "indexer.k_norm.bias", plain, {8});
      tiny.add(attention + "indexer.weights_proj.weight", plain, {2, 16});
    }
    const auto add_mlp = [&](const std::string& name, int64_t width) {
      tiny.add_weight(prefix + name + "gate_proj.weight", dtype, width, 16);
      tiny.add_weight(prefix + name + "up_proj.weight", dtype, width, 16);
      tiny.add_weight(prefix + name + "down_proj.weight", dtype, 16, width);
    };
    if (layer == 0) {
      add_mlp("mlp.", 20);
      continue;
    }
    tiny.add(prefix + "mlp.gate.weight", plain, {experts, 16});
    tiny.add(prefix + "mlp.gate.e_score_correction_bias", "F32", {experts});
    add_mlp("mlp.shared_experts.", 24);
    for (int expert = 0; expert < experts; ++expert)
      add_mlp(fmt::format("mlp.experts.{}.", expert), 12);
  }
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
    tiny.add(fmt::format("model.layers.2.{}.weight", norm), plain, {16});
  tiny.add("model.layers.2.eh_proj.weight", plain, {16, 32});
  return tiny;
}

void TinyCheckpoint::add(const std::string& name, const std::string& dtype,
                         std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  TinyTensor tensor{dtype, std::move(shape), {}};
  uint32_t state = 0;
  for (const char letter : name) state = state * 31 + static_cast<unsigned char>(letter);
  for (int64_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(next_random(state) % 4001) - 2000) / 1024;
    uint8_t raw[4];
    if (dtype == "F32") {
      std::memcpy(raw, &value, 4);
    } else if (dtype == "F8_E4M3") {
      raw[0] = static_cast<uint8_t>(next_random(state) % 126 + (next_random(state) % 2) * 128);
    } else {
      const uint16_t half = dtype == "F16" ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(raw, &half, 2);
    }
    tensor.bytes.insert(tensor.bytes.end(), raw, raw + element_bytes(dtype));
  }
  tensors[name] = std::move(tensor);
}

void TinyCheckpoint::add_weight(const std::string& name, const std::string& dtype, int64_t rows,
                                int64_t columns) {
  add(name, dtype, {rows, columns});
  if (dtype == "F8_E4M3") add(name + "_scale_inv", "F32", {(rows + 7) / 8, (columns + 7) / 8});
}

void TinyCheckpoint::fuse_experts() {
  for (int layer = 1; layer < 3; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    TinyTensor gate_up{"BF16", {4, 24, 16}, {}}, down{"BF16", {4, 16, 12}, {}};
    for (int expert = 0; expert < 4; ++expert) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = fmt::format("{}{}.{}.weight", prefix, expert, part);
        TinyTensor& target = part == std::string("down_proj") ? down : gate_up;
        const std::vector<uint8_t>& bytes = tensors.at(name).bytes;
        target.dtype = tensors.at(name).dtype;
        target.bytes.insert(target.bytes.end(), bytes.begin(), bytes.end());
        tensors.erase(name);
      }
    }
    tensors[prefix + "gate_up_proj"] = std::move(gate_up);
    tensors[prefix + "down_proj"] = std::move(down);
  }
}

void TinyCheckpoint::use_compressed_tensors(const std::string& strategy) {
  const std::map<std::string, TinyTensor> before = tensors;
  for (const auto& [name, tensor] : before) {
    if (tensor.dtype != "F8_E4M3") continue;
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    tensors.erase(name + "_scale_inv");
    if (strategy == "block") add(name + "_scale", "BF16", {(rows + 7) / 8, (columns + 7) / 8});
    if (strategy == "channel") add(name + "_scale", "BF16", {rows, 1});
    if (strategy == "tensor") add(name + "_scale", "F32", {1});
  }
  const std::string quantization = fmt::format(
      R"({{"quant_method":"compressed-tensors","format":"float-quantized","kv_cache_scheme":null,
      "ignore":["lm_head"],"config_groups":{{"group_0":{{"targets":["Linear"],
      "weights":{{"num_bits":8,"type":"float","symmetric":true,"dynamic":false,"strategy":"{}",
      "block_structure":{}}},"input_activations":{{"num_bits":8,"type":"float","dynamic":true}}}}}},
      "sparsity_config":{{}},"transform_config":{{}},"quantization_status":"compressed"}})",
      strategy, strategy == "block" ? "[8,8]" : "null");
  config.set("quantization_config", parse_json(quantization, "config").value());
}

std::vector<float> TinyCheckpoint::values(const std::string& name) const {
  const TinyTensor& tensor = tensors.at(name);
  std::vector<float> out;
  const int64_t width = tensor.shape.back();
  std::vector<float> scales;
  int64_t scale_columns = 0, block_rows = 8, block_columns = 8;
  if (tensor.dtype == "F8_E4M3") {
    const std::string scale_name =
        name + (tensors.contains(name + "_scale") ? "_scale" : "_scale_inv");
    scales = values(scale_name);
    const std::vector<int64_t>& shape = tensors.at(scale_name).shape;
    scale_columns = shape.size() == 2 ? shape[1] : 1;
    if (shape[0] == tensor.shape[0]) block_rows = 1;
    if (shape[0] == 1) block_rows = tensor.shape[0];
    if (scale_columns == 1) block_columns = width;
  }
  for (size_t at = 0; at < tensor.bytes.size();
       at += static_cast<size_t>(element_bytes(tensor.dtype))) {
    if (tensor.dtype == "F32") {
      float value;
      std::memcpy(&value, &tensor.bytes[at], 4);
      out.push_back(value);
    } else if (tensor.dtype == "F8_E4M3") {
      const auto index = static_cast<int64_t>(at);
      const int64_t block =
          index / width / block_rows * scale_columns + index % width / block_columns;
      out.push_back(fp8_value(tensor.bytes[at]) * scales[static_cast<size_t>(block)]);
    } else {
      uint16_t half;
      std::memcpy(&half, &tensor.bytes[at], 2);
      out.push_back(tensor.dtype == "F16" ? f16_to_f32(half) : bf16_to_f32(half));
    }
  }
  return out;
}

void TinyCheckpoint::write(const std::string& folder, int shards) const {
  std::filesystem::create_directories(folder);
  write_text(folder + "/config.json", config.to_string());
  if (shards == 1) return write_safetensors(folder + "/model.safetensors", tensors);
  std::vector<std::map<std::string, TinyTensor>> parts(static_cast<size_t>(shards));
  const auto name_of = [&](size_t part) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, shards);
  };
  std::string map;
  size_t turn = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t part = turn++ % parts.size();
    parts[part][name] = tensor;
    map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", name, name_of(part));
  }
  for (size_t part = 0; part < parts.size(); ++part)
    write_safetensors(folder + "/" + name_of(part), parts[part]);
  write_text(folder + "/model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
}

void write_safetensors(const std::string& path, const std::map<std::string, TinyTensor>& tensors) {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors) {
    header +=
        fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                    header.size() > 1 ? "," : "", name, tensor.dtype, fmt::join(tensor.shape, ","),
                    data.size(), data.size() + tensor.bytes.size());
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  header += "}";
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  write_text(path, length + header + data);
}

std::map<std::string, TinyTensor> TinyCheckpoint::take(const std::string& prefix) {
  std::map<std::string, TinyTensor> taken;
  for (auto at = tensors.lower_bound(prefix);
       at != tensors.end() && at->first.starts_with(prefix);) {
    const auto next = std::next(at);
    taken.insert(tensors.extract(at));
    at = next;
  }
  return taken;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "glmd-test-XXXXXX").string();
  EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code code;
  std::filesystem::remove_all(path_, code);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write_text(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  EXPECT_TRUE(out.good()) << path;
}

void forget_accompanying(const std::string& folder) {
  std::string text = read_text(folder + "/glmd.json");
  const std::string_view member = "\"accompanying\":[";
  const size_t begin = text.find(member);
  ASSERT_NE(begin, std::string::npos);
  text.erase(begin, text.find(']', begin) + 2 - begin);
  write_text(folder + "/glmd.json", text);
}

std::map<std::string, std::string> read_folder(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = read_text(entry.path().string());
  return files;
}

}  // namespace glmd::test
