#include "tools/convert/checkpoint.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "storage/manifest.h"

namespace glmd {
namespace {

constexpr int64_t json_bytes_max = int64_t{64} << 20;
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";

Result<Checkpoint::FileStamp> stamp(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return file_error(path, "stat");
  if (!S_ISREG(status.st_mode))
    return error(ErrorKind::bad_input, "{}: wanted a regular file", path);
  return Checkpoint::FileStamp{
      .name = name,
      .bytes = static_cast<int64_t>(status.st_size),
      .modified_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// The index: which shard has which tensor.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  const Json json = TRY(read_json_file(path, json_bytes_max));
  const Json* map = json.is_object() ? json.find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->members().empty())
    return error(ErrorKind::bad_input, "{}: weight_map: wanted an object with tensors", path);
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->members()) {
    if (!is_tensor_name(tensor)) {
      return error(ErrorKind::bad_input, "{}: weight_map: wanted printable tensor names, got {}",
                   path, Json::string(tensor.substr(0, 60)).to_string());
    }
    const bool is_name = shard.is_string() && !shard.as_string().empty() &&
                         shard.as_string().find('/') == std::string::npos &&
                         is_tensor_name(shard.as_string());
    if (!is_name) {
      return error(ErrorKind::bad_input,
                   "{}: tensor {}: wanted the name of a file beside it, got {}", path, tensor,
                   shard.to_string());
    }
    if (!shards.emplace(tensor, shard.as_string()).second)
      return error(ErrorKind::bad_input, "{}: tensor {}: stands twice", path, tensor);
  }
  return shards;
}

// Without an index: every *.safetensors; names that count ("-00002-of-00003") must be complete.
Result<std::vector<std::string>> list_shards(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : TRY(list_directory(folder))) {
    if (name.ends_with(".safetensors")) names.push_back(name);
  }
  for (const std::string& name : names) {
    int index = 0, count = 0, used = 0;
    const size_t dash = name.find('-');
    if (dash == std::string::npos) continue;
    if (std::sscanf(name.c_str() + dash, "-%5d-of-%5d%n", &index, &count, &used) != 2 || used == 0)
      continue;
    for (int i = 1; i <= count; ++i) {
      const std::string wanted =
          fmt::format("{}-{:05}-of-{:05}.safetensors", name.substr(0, dash), i, count);
      if (std::find(names.begin(), names.end(), wanted) == names.end())
        return error(ErrorKind::not_found, "{}/{}: missing shard (of {})", folder, wanted, count);
    }
  }
  return names;
}

bool is_ignored(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder,
                                    const std::vector<std::string>& ignored) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  std::vector<FileStamp> small_stamps;  // first: reading something else than a file may not end
  for (const char* name : accompanying_names) {
    if (!path_exists(folder + "/" + name)) continue;
    checkpoint.small_files_.push_back(name);
    small_stamps.push_back(TRY(stamp(folder, name)));
  }
  const std::string config_path = folder + "/config.json";
  const Json config = TRY(read_json_file(config_path, json_bytes_max));
  checkpoint.config_ = TRY(CheckpointConfig::parse(config, config_path));
  const std::string generation_path = folder + "/generation_config.json";
  if (path_exists(generation_path)) {
    const Json generation = TRY(read_json_file(generation_path, json_bytes_max));
    TRY(checkpoint.config_.add_generation_config(generation, generation_path));
  }

  std::map<std::string, std::string> index;
  std::vector<std::string> names;
  if (path_exists(folder + "/" + index_name)) {
    index = TRY(read_index(folder + "/" + index_name));
    std::set<std::string> distinct;
    for (const auto& [tensor, shard] : index) distinct.insert(shard);
    names.assign(distinct.begin(), distinct.end());
    for (const std::string& name : names) {
      if (!path_exists(folder + "/" + name)) {
        return error(ErrorKind::not_found, "{}/{}: missing shard, named by {}", folder, name,
                     index_name);
      }
    }
  } else if (path_exists(folder + "/" + single_name)) {
    names = {single_name};
  } else {
    names = TRY(list_shards(folder));
  }
  if (names.empty()) {
    return error(ErrorKind::not_found, "{}: no weights: wanted {}, {} or *.safetensors", folder,
                 index_name, single_name);
  }
  for (const std::string& name : names) TRY(checkpoint.add_shard(name, ignored));
  for (const auto& [tensor, shard] : index) {
    const SourceTensor* found = checkpoint.find(tensor);
    if (found == nullptr && is_ignored(tensor, ignored)) continue;
    if (found == nullptr || checkpoint.path(*found) != folder + "/" + shard) {
      return error(ErrorKind::bad_input,
                   "{}/{}: tensor {}: {} names it, the shard does not have it", folder, shard,
                   tensor, index_name);
    }
  }

  checkpoint.stamps_ = checkpoint.shard_stamps_;
  checkpoint.stamps_.insert(checkpoint.stamps_.end(), small_stamps.begin(), small_stamps.end());
  return checkpoint;
}

Result<void> Checkpoint::add_shard(const std::string& name,
                                   const std::vector<std::string>& ignored) {
  const std::string path = folder_ + "/" + name;
  shard_stamps_.push_back(TRY(stamp(folder_, name)));
  File file = TRY(File::open_read_only(path));
  SafetensorsHeader header = TRY(read_safetensors_header(file));
  for (StoredTensor& stored : header.tensors) {
    if (is_ignored(stored.name, ignored)) {
      ++ignored_count_;
      continue;
    }
    const std::string tensor = stored.name;
    const auto [place, is_new] = tensors_.emplace(
        tensor, SourceTensor{std::move(stored), static_cast<int32_t>(shards_.size())});
    if (!is_new) {
      return error(ErrorKind::bad_input, "{}: tensor {}: {} has it too", path, tensor,
                   this->path(place->second));
    }
  }
  shards_.push_back(std::move(file));
  return {};
}

const SourceTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<void> Checkpoint::read(const SourceTensor& tensor, int64_t offset,
                              std::span<uint8_t> target) const {
  CHECK(offset >= 0);
  CHECK(offset + static_cast<int64_t>(target.size()) <= tensor.stored.bytes);
  const File& file = shards_[static_cast<size_t>(tensor.shard)];
  TRY_CONTEXT(file.read_at(tensor.stored.offset + offset, target), "tensor " + tensor.stored.name);
  return {};
}

void Checkpoint::read_ahead(const SourceTensor& tensor, int64_t offset, int64_t bytes) const {
  const File& file = shards_[static_cast<size_t>(tensor.shard)];
  ::posix_fadvise(file.descriptor(), tensor.stored.offset + offset, bytes, POSIX_FADV_WILLNEED);
}

const std::string& Checkpoint::path(const SourceTensor& tensor) const {
  return shards_[static_cast<size_t>(tensor.shard)].path();
}

}  // namespace glmd
