// A random checkpoint of a few kilobytes in Hugging Face layout, to be spoilt by tests before it is
// written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "platform/json.h"

namespace glmd::test {

struct TinyTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

struct TinyCheckpoint {
  Json config;
  std::map<std::string, TinyTensor> tensors;

  // Layer 0 dense, layer 1 sparse, layer 2 the draft layer; `dtype` of weights: BF16, F16, F32 or
  // F8_E4M3.
  static TinyCheckpoint make(const std::string& dtype = "BF16", int experts = 4);

  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape);
  // With its scales where dtype is F8_E4M3 (blocks of 8 x 8).
  void add_weight(const std::string& name, const std::string& dtype, int64_t rows, int64_t columns);
  // Replaces the experts' tensors by the fused ones that transformers writes.
  void fuse_experts();
  // FP8 as compressed-tensors stores it; `strategy`: block (8 x 8), channel or tensor.
  void use_compressed_tensors(const std::string& strategy);
  // Removes the tensors whose names begin so; they are the value.
  std::map<std::string, TinyTensor> take(const std::string& prefix);
  // The float32 values a tensor stands for.
  std::vector<float> values(const std::string& name) const;

  // One shard: model.safetensors; more: with an index.
  void write(const std::string& folder, int shards = 1) const;
};

void write_safetensors(const std::string& path, const std::map<std::string, TinyTensor>& tensors);

// A fresh folder under the system's temporary one, removed with its content.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_text(const std::string& path);
void write_text(const std::string& path, std::string_view text);
// As if the container had been made before glmd.json recorded the files beside the tensors.
void forget_accompanying(const std::string& folder);
// All files of a folder by name.
std::map<std::string, std::string> read_folder(const std::string& folder);

}  // namespace glmd::test
