// A model folder in our format: safetensors files, glmd.json, and the checkpoint's own
// small files. Everything is untrusted: open() checks sizes, offsets, overlaps, duplicates and
// shapes before any memory is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block_formats.h"
#include "platform/json.h"
#include "platform/result.h"
#include "storage/checkpoint_config.h"

namespace glmd {

// How the bytes of a tensor lie.
enum class TensorLayout : uint8_t {
  matrix,     // block_formats.h: Matrix
  gate_up,    // gate and up in one
  embedding,  // row-major rows
  vector,     // f32
  expert,     // gate_up, padded to 64 bytes, then down; whole length a multiple of 4096
};

// A tensor of a container.
struct Tensor {
  std::string name;
  TensorLayout layout = TensorLayout::matrix;
  BlockFormat format = BlockFormat::f32;
  int64_t rows = 0, columns = 0;  // logical; gate_up and expert: rows and columns of gate
  int32_t file = 0;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
  uint64_t hash = 0;  // XXH3-64 of the bytes
};

// Names of a container's tensors. `L` is the layer; the draft layer is layer num_hidden_layers.
//   embedding, head, norm
//   layers.L.{input_norm, post_attention_norm}
//   layers.L.attention.{q_a, q_a_norm, q_b, kv_a, kv_a_norm, o}
//   layers.L.attention.k_b  matrix, rows = heads * kv_lora, columns = nope (row h * kv_lora + c)
//   layers.L.attention.v_b  matrix, rows = heads * v_head_dim, columns = kv_lora
//   layers.L.indexer.{q_b, k, k_norm, k_norm_bias, weights}
//   layers.L.mlp.{gate_up, down}               dense layers
//   layers.L.router, layers.L.router_bias      sparse layers
//   layers.L.shared.{gate_up, down}            all shared experts as one of that total width
//   layers.L.experts.E                         layout expert
//   layers.L.{embedding_norm, hidden_norm, eh_proj, head_norm}   draft layer; optional
//   layers.L.{embedding, head}
class Container {
 public:
  static constexpr int64_t format_version = 1;

  static Result<Container> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Json& config() const { return config_; }  // config.json
  // config.json checked, with the stop tokens of generation_config.json; draft_layers is 0 where
  // the container has no draft layer, whatever config.json says.
  const CheckpointConfig& checkpoint() const { return checkpoint_; }
  const Json& manifest() const { return manifest_; }  // glmd.json
  uint64_t identity() const { return identity_; }
  bool is_reference() const { return is_reference_; }  // both policies are exact
  double latent_norm_eps() const { return latent_norm_eps_; }
  bool has_tokenizer() const;

  // Full paths; Tensor::file is an index.
  const std::vector<std::string>& files() const { return files_; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;

  // Called after each piece of a tensor, a fraction of a second apart; an error ends the read.
  using ReadProgress = std::function<Result<void>(int64_t bytes_done)>;
  // Reads one tensor's bytes and checks its hash.
  Result<void> read(const Tensor& tensor, std::span<uint8_t> target,
                    const ReadProgress& progress = {}) const;
  // Every checksum and every missing or short file of a folder, all at once; empty: sound.
  static std::vector<std::string> verify(const std::string& folder);
  // Texts that open() takes although they are not as they were at conversion: an administrator may
  // change them on purpose. A line for each.
  static std::vector<std::string> changed_texts(const std::string& folder);

 private:
  std::string folder_;
  Json config_, manifest_;
  CheckpointConfig checkpoint_;
  uint64_t identity_ = 0;
  bool is_reference_ = false;
  double latent_norm_eps_ = 1e-5;
  std::vector<std::string> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

// Where down begins in an expert tensor, and its whole length.
constexpr int64_t expert_down_offset(BlockFormat format, int64_t width, int64_t hidden) {
  return (gate_up_bytes(format, width, hidden) + 63) / 64 * 64;
}
constexpr int64_t expert_bytes(BlockFormat format, int64_t width, int64_t hidden) {
  return (expert_down_offset(format, width, hidden) + matrix_bytes(format, hidden, width) + 4095) /
         4096 * 4096;
}

}  // namespace glmd
