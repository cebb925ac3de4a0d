#include "tools/convert/checkpoint.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

#include "platform/counted.h"
#include "storage/manifest.h"
#include "tools/convert/source_names.h"

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
Result<std::map<std::string, std::string, std::less<>>> read_index(const std::string& path) {
  const Json json = TRY(read_json_file(path, json_bytes_max));
  const Json* map = json.is_object() ? json.find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->members().empty())
    return error(ErrorKind::bad_input, "{}: weight_map: wanted an object with tensors", path);
  std::map<std::string, std::string, std::less<>> shards;
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

// A shard's tensors, but for the ignored ones.
struct UnlistedShard {
  std::string name;
  std::vector<std::string> tensors;
};

Result<UnlistedShard> read_unlisted(const std::string& folder, const std::string& name,
                                    const std::vector<std::string>& ignored) {
  const File file = TRY(File::open_read_only(folder + "/" + name));
  UnlistedShard shard{name, {}};
  SafetensorsHeader header = TRY(read_safetensors_header(file));
  for (StoredTensor& stored : header.tensors)
    if (!is_ignored(stored.name, ignored)) shard.tensors.push_back(std::move(stored.name));
  return shard;
}

bool is_wanted(const std::set<std::string, std::less<>>& wanted, std::string_view tensor) {
  if (wanted.contains(tensor) || is_activation_scale(tensor)) return true;
  return std::any_of(std::begin(scale_suffixes), std::end(scale_suffixes), [&](auto suffix) {
    return tensor.ends_with(suffix) &&
           wanted.contains(tensor.substr(0, tensor.size() - suffix.size()));
  });
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder,
                                    const std::vector<std::string>& ignored) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  std::vector<FileStamp> small_stamps;
  TRY(checkpoint.read_texts(small_stamps));

  Index index;
  std::set<std::string> names;
  bool may_have_unlisted = true;
  if (path_exists(folder + "/" + index_name)) {
    index = TRY(read_index(folder + "/" + index_name));
    for (const auto& [tensor, shard] : index) names.insert(shard);
    for (const std::string& name : names) {
      if (!path_exists(folder + "/" + name)) {
        return error(ErrorKind::not_found, "{}/{}: missing shard, named by {}", folder, name,
                     index_name);
      }
    }
  } else if (path_exists(folder + "/" + single_name)) {
    names = {single_name};
  } else {
    for (std::string& name : TRY(list_shards(folder))) names.insert(std::move(name));
    may_have_unlisted = false;
  }
  if (names.empty()) {
    return error(ErrorKind::not_found, "{}: no weights: wanted {}, {} or *.safetensors", folder,
                 index_name, single_name);
  }
  for (const std::string& name : names) TRY(checkpoint.add_shard(name, index, ignored));
  TRY(checkpoint.check_index(index, ignored));
  if (may_have_unlisted) TRY(checkpoint.add_unlisted(names, ignored));
  if (checkpoint.overlaid_count_ > 0) {
    checkpoint.notes_.push_back(
        fmt::format("{}: {} in two shards or more, the copy that {} names "
                    "is used",
                    folder, counted(checkpoint.overlaid_count_, "tensor"), index_name));
    checkpoint.shard_stamps_.push_back(TRY(stamp(folder, index_name)));
  }
  checkpoint.stamps_ = checkpoint.shard_stamps_;
  checkpoint.stamps_.insert(checkpoint.stamps_.end(), small_stamps.begin(), small_stamps.end());
  return checkpoint;
}

Result<void> Checkpoint::read_texts(std::vector<FileStamp>& small_stamps) {
  for (const char* name : accompanying_names) {
    if (!path_exists(folder_ + "/" + name)) continue;
    small_files_.push_back(name);
    small_stamps.push_back(TRY(stamp(folder_, name)));  // no pipe, so that reading it ends
  }
  const std::string config_path = folder_ + "/config.json";
  const Json config = TRY(read_json_file(config_path, json_bytes_max));
  config_ = TRY(CheckpointConfig::parse(config, config_path));
  const std::string generation_path = folder_ + "/generation_config.json";
  if (!path_exists(generation_path)) return {};
  const Json generation = TRY(read_json_file(generation_path, json_bytes_max));
  return config_.add_generation_config(generation, generation_path);
}

Result<void> Checkpoint::add_shard(const std::string& name, const Index& index,
                                   const std::vector<std::string>& ignored) {
  const std::string path = folder_ + "/" + name;
  shard_stamps_.push_back(TRY(stamp(folder_, name)));
  const File file = TRY(File::open_read_only(path));
  SafetensorsHeader header = TRY(read_safetensors_header(file));
  for (StoredTensor& stored : header.tensors) {
    if (is_ignored(stored.name, ignored)) {
      ++ignored_count_;
      continue;
    }
    const auto named = index.find(stored.name);
    if (named != index.end() && named->second != name) {
      ++overlaid_count_;
      continue;
    }
    const std::string tensor = stored.name;
    const auto [place, is_new] = tensors_.emplace(
        tensor, SourceTensor{std::move(stored), static_cast<int32_t>(shard_paths_.size())});
    if (!is_new) {
      return error(ErrorKind::bad_input, "{}: tensor {}: {} has it too", path, tensor,
                   this->path(place->second));
    }
  }
  shard_paths_.push_back(path);
  return {};
}

Result<void> Checkpoint::check_index(const Index& index,
                                     const std::vector<std::string>& ignored) const {
  for (const auto& [tensor, shard] : index) {
    const SourceTensor* found = find(tensor);
    if (found == nullptr && is_ignored(tensor, ignored)) continue;
    if (found == nullptr || path(*found) != folder_ + "/" + shard) {
      return error(ErrorKind::bad_input,
                   "{}/{}: tensor {}: {} names it, the shard does not have it", folder_, shard,
                   tensor, index_name);
    }
  }
  return {};
}

// Files beside those of the index, or beside model.safetensors: a draft layer is often handed round
// so. One is used if config.json has a use for each of its tensors and no other file has any of
// them; what is left out is noted.
Result<void> Checkpoint::add_unlisted(const std::set<std::string>& listed,
                                      const std::vector<std::string>& ignored) {
  std::vector<UnlistedShard> shards;
  std::map<std::string_view, int> unlisted_copies;
  const auto leave_out = [&](const std::string& name, const std::string& why) {
    notes_.push_back(fmt::format("{}/{}: left out: {}", folder_, name, why));
  };
  for (const std::string& name : TRY(list_directory(folder_))) {
    if (!name.ends_with(".safetensors") || listed.contains(name)) continue;
    Result<UnlistedShard> shard = read_unlisted(folder_, name, ignored);
    if (shard.ok()) {
      shards.push_back(std::move(shard).value());
    } else {
      leave_out(name, shard.error().message);
    }
  }
  if (shards.empty()) return {};
  for (const UnlistedShard& shard : shards)
    for (const std::string& tensor : shard.tensors) ++unlisted_copies[tensor];
  const std::set<std::string, std::less<>> wanted = all_source_names(config_);
  const auto fault_of = [&](const std::string& tensor) -> std::string {
    if (const SourceTensor* used = find(tensor))
      return fmt::format("tensor {} is in {} too", tensor, path(*used));
    if (unlisted_copies[tensor] > 1)
      return fmt::format("tensor {} is in another file too, and no index decides", tensor);
    if (!is_wanted(wanted, tensor))
      return fmt::format("config.json has no use for tensor {}", tensor);
    return "";
  };
  std::vector<std::string> found;
  for (const UnlistedShard& shard : shards) {
    std::string fault = shard.tensors.empty() ? "no tensor in it" : "";
    for (size_t i = 0; i < shard.tensors.size() && fault.empty(); ++i)
      fault = fault_of(shard.tensors[i]);
    if (fault.empty()) {
      found.push_back(shard.name);
    } else {
      leave_out(shard.name, fault);
    }
  }
  for (const std::string& name : found) {
    notes_.push_back(fmt::format("{}/{}: used, though not listed", folder_, name));
    TRY(add_shard(name, {}, ignored));
  }
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
  const FileStamp& opened = shard_stamps_[static_cast<size_t>(tensor.shard)];
  const File file = TRY(File::open_read_only(path(tensor)));
  if (TRY(stamp(folder_, opened.name)) != opened)
    return error(ErrorKind::bad_input, "{}: changed during the conversion", path(tensor));
  TRY_CONTEXT(file.read_at(tensor.stored.offset + offset, target), "tensor " + tensor.stored.name);
  return {};
}

void Checkpoint::read_ahead(const SourceTensor& tensor, int64_t offset, int64_t bytes) const {
  const Result<File> file = File::open_read_only(path(tensor));
  if (!file.ok()) return;  // read() will say so
  ::posix_fadvise(file.value().descriptor(), tensor.stored.offset + offset, bytes,
                  POSIX_FADV_WILLNEED);
}

const std::string& Checkpoint::path(const SourceTensor& tensor) const {
  return shard_paths_[static_cast<size_t>(tensor.shard)];
}

}  // namespace glmd
