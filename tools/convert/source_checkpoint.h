// A Hugging Face checkpoint folder as values: every tensor by name, rows read as float32 wherever
// and however they are stored. FP8 (e4m3fn) is one float32 product with its block's scale (GLM52
// 8). Thread: any.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "platform/file.h"
#include "platform/json.h"
#include "storage/checkpoint_config.h"
#include "storage/safetensors.h"

namespace glmd {

class SourceCheckpoint {
 public:
  static Result<SourceCheckpoint> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const CheckpointConfig& config() const { return config_; }
  // "name size modification-time" of every shard: a resumed conversion wants them unchanged.
  const std::vector<std::string>& shard_stamps() const { return shard_stamps_; }

  const StoredTensor* find(std::string_view name) const;
  std::vector<std::string> names() const;

  // Rows [begin, end) of a tensor whose leading dimensions count as rows. `shape` is what the
  // caller takes it for. Fails where the shape differs, a value is not finite, or a scale is
  // missing or not finite.
  Result<void> read_rows(std::string_view name, std::vector<int64_t> shape, int64_t begin,
                         int64_t end, float* values) const;

 private:
  struct Place {
    size_t shard;
    StoredTensor tensor;
  };
  Result<void> scale_fp8(std::string_view name, int64_t rows, int64_t columns, int64_t begin,
                         int64_t end, float* values) const;

  std::string folder_;
  CheckpointConfig config_;
  std::vector<File> shards_;
  std::vector<std::string> shard_stamps_;
  std::map<std::string, Place, std::less<>> tensors_;
};

}  // namespace glmd
