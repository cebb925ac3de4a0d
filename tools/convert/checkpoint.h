// A Hugging Face checkpoint folder, read as it lies: which tensor is in which shard, and rows of it
// on demand. Where two shards have a tensor, the index decides. Files that the index does not list
// are used where that is the only way to read them: see add_unlisted(). Shards are opened as
// needed, however many there are. Nothing is trusted; symbolic links (hub caches) are followed.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/file.h"
#include "platform/json.h"
#include "platform/result.h"
#include "storage/checkpoint_config.h"
#include "storage/safetensors.h"

namespace glmd {

struct SourceTensor {
  StoredTensor stored;
  int32_t shard = 0;
};

class Checkpoint {
 public:
  struct FileStamp {
    std::string name;
    int64_t bytes = 0;
    int64_t modified_ns = 0;
    bool operator==(const FileStamp&) const = default;
  };

  // Tensors whose names match one of the `ignored` patterns (*, ?, [...]) are treated as not there.
  static Result<Checkpoint> open(const std::string& folder,
                                 const std::vector<std::string>& ignored);

  const std::string& folder() const { return folder_; }
  const CheckpointConfig& config() const { return config_; }
  const std::map<std::string, SourceTensor, std::less<>>& tensors() const { return tensors_; }
  const SourceTensor* find(std::string_view name) const;
  int64_t ignored_count() const { return ignored_count_; }

  // What was decided about files and tensors, a line each, for people.
  const std::vector<std::string>& notes() const { return notes_; }

  // Shards and small files with size and time: what a resumed conversion must find unchanged. The
  // index is among the shards where it decided something.
  const std::vector<FileStamp>& stamps() const { return stamps_; }
  const std::vector<FileStamp>& shard_stamps() const { return shard_stamps_; }
  // Those of accompanying_names (manifest.h) that exist.
  const std::vector<std::string>& small_files() const { return small_files_; }

  // Bytes [offset, offset + target) of a tensor. Refuses a shard that is no longer as it was when
  // the checkpoint was opened. Thread: any.
  Result<void> read(const SourceTensor& tensor, int64_t offset, std::span<uint8_t> target) const;
  // Asks the system to have these bytes in memory soon. Thread: any.
  void read_ahead(const SourceTensor& tensor, int64_t offset, int64_t bytes) const;
  const std::string& path(const SourceTensor& tensor) const;

 private:
  using Index = std::map<std::string, std::string, std::less<>>;  // tensor -> shard

  Result<void> read_texts(std::vector<FileStamp>& small_stamps);
  Result<void> add_shard(const std::string& name, const Index& index,
                         const std::vector<std::string>& ignored);
  Result<void> check_index(const Index& index, const std::vector<std::string>& ignored) const;
  Result<void> add_unlisted(const std::set<std::string>& listed,
                            const std::vector<std::string>& ignored);

  std::string folder_;
  CheckpointConfig config_;
  std::vector<std::string> shard_paths_;
  std::map<std::string, SourceTensor, std::less<>> tensors_;
  std::vector<FileStamp> stamps_, shard_stamps_;
  std::vector<std::string> small_files_;
  std::vector<std::string> notes_;
  int64_t ignored_count_ = 0;
  int64_t overlaid_count_ = 0;  // copies that the index does not name
};

}  // namespace glmd
