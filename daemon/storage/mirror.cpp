#include "storage/mirror.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "platform/file.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"

namespace glmd {
namespace {

constexpr int64_t manifest_bytes_max = int64_t{256} << 20;

// Every expert, where the folder is a container itself.
Result<MirrorManifest> whole_copy(const std::string& folder) {
  const std::string path = folder + "/glmd.json";
  const Json json = TRY(read_json_file(path, manifest_bytes_max));
  const Manifest manifest = TRY(Manifest::parse(json, path));
  MirrorManifest copy;
  copy.identity = manifest.identity();
  for (const auto& [name, tensor] : manifest.tensors) {
    if (tensor.layout == TensorLayout::expert) copy.experts.emplace(name, tensor.hash);
  }
  return copy;
}

Result<MirrorManifest> read_either(const std::string& folder) {
  if (path_exists(folder + "/" + MirrorManifest::file_name)) return MirrorManifest::read(folder);
  if (path_exists(folder + "/glmd.json")) return whole_copy(folder);
  return error(ErrorKind::not_found, "{}: no mirror: wanted {} or glmd.json in it", folder,
               MirrorManifest::file_name);
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

// By device and inode, whatever names, links and mounts lead there.
bool is_same_file(const std::string& a, const std::string& b) {
  const auto status_a = status_of(a), status_b = status_of(b);
  return status_a && status_b && status_a->st_dev == status_b->st_dev &&
         status_a->st_ino == status_b->st_ino;
}

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::vector<std::string> expert_files(const Container& container) {
  std::set<int32_t> files;
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout == TensorLayout::expert) files.insert(tensor.file);
  }
  std::vector<std::string> paths;
  for (const int32_t file : files) paths.push_back(container.files()[static_cast<size_t>(file)]);
  return paths;
}

Result<void> check_is_copy(const std::string& folder, const Container& container,
                           std::span<const std::string> others) {
  if (is_inside(folder, container)) {
    return error(ErrorKind::bad_input, "mirror {}: wanted another place, got one inside {}", folder,
                 container.folder());
  }
  std::vector<std::string> folders = {container.folder()};
  folders.insert(folders.end(), others.begin(), others.end());
  for (const std::string& path : expert_files(container)) {
    const std::string name = name_of(path);
    for (const std::string& other : folders) {
      if (!is_same_file(folder + "/" + name, other + "/" + name)) continue;
      return error(ErrorKind::bad_input, "mirror {}: {}: wanted a copy, got the same file as in {}",
                   folder, name, other);
    }
  }
  return {};
}

// What is malformed in a copy is damage.
Error damaged(Error error) {
  if (error.kind == ErrorKind::bad_input) error.kind = ErrorKind::corrupt;
  return error;
}

// Which experts and files are there, by a manifest of this container.
Result<Mirror> mirror_of(const MirrorManifest& manifest, const std::string& folder,
                         const Container& container) {
  Mirror mirror;
  mirror.folder = folder;
  mirror.file_of.assign(container.files().size(), -1);
  for (const auto& [name, hash] : manifest.experts) {
    const Tensor* tensor = container.find(name);
    if (tensor == nullptr || tensor->layout != TensorLayout::expert || tensor->hash != hash) {
      return error(ErrorKind::corrupt, "mirror {}: {}: no expert of {} with this hash", folder,
                   name, container.folder());
    }
    mirror.expert_places.emplace(tensor->file, tensor->offset);
    mirror.file_of[static_cast<size_t>(tensor->file)] = 0;
  }
  for (size_t file = 0; file < mirror.file_of.size(); ++file) {
    if (mirror.file_of[file] < 0) continue;
    const std::string& original = container.files()[file];
    const std::string path = folder + "/" + name_of(original);
    const File wanted_file = TRY(File::open_read_only(original));
    const File got_file = TRY(File::open_read_only(path));
    const int64_t wanted = TRY(wanted_file.size_bytes()), got = TRY(got_file.size_bytes());
    if (got != wanted) {
      return error(ErrorKind::corrupt, "{}: size: wanted {} bytes, got {}", path, wanted, got);
    }
    mirror.file_of[file] = static_cast<int32_t>(mirror.paths.size());
    mirror.paths.push_back(path);
  }
  return mirror;
}

}  // namespace

Json MirrorManifest::to_json() const {
  std::vector<Json::Member> members;
  for (const auto& [name, hash] : experts)
    members.emplace_back(name, Json::string(hash_text(hash)));
  return Json::object({{"format_version", Json::integer(format_version)},
                       {"identity", Json::string(hash_text(identity))},
                       {"experts", Json::object(std::move(members))}});
}

Result<MirrorManifest> MirrorManifest::parse(const Json& json, std::string_view what) {
  if (!json.is_object())
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", what, shown(&json));
  const Json* version = json.find("format_version");
  if (version == nullptr || !version->is_integer() || version->as_integer() != format_version) {
    return wrong_value(what, "format_version", fmt::format("{}", format_version), version);
  }
  MirrorManifest manifest;
  const std::optional<uint64_t> identity = parse_hash(json.find("identity"));
  if (!identity)
    return wrong_value(what, "identity", "16 hexadecimal digits", json.find("identity"));
  manifest.identity = *identity;
  const Json* experts = json.find("experts");
  if (experts == nullptr || !experts->is_object())
    return wrong_value(what, "experts", "an object", experts);
  for (const auto& [name, value] : experts->members()) {
    if (!is_tensor_name(name)) {
      const Json got = Json::string(name);
      return wrong_value(what, "experts", "printable names", &got);
    }
    const std::optional<uint64_t> hash = parse_hash(&value);
    if (!hash) return wrong_value(what, "experts: " + name, "16 hexadecimal digits", &value);
    manifest.experts[name] = *hash;
  }
  return manifest;
}

Result<MirrorManifest> MirrorManifest::read(const std::string& folder) {
  const std::string path = folder + "/" + file_name;
  return parse(TRY(read_json_file(path, manifest_bytes_max)), path);
}

Result<Mirror> Mirror::open(const std::string& folder, const Container& container,
                            std::span<const std::string> others) {
  TRY(check_is_copy(folder, container, others));
  const Result<MirrorManifest> manifest = read_either(folder);
  if (!manifest.ok()) return damaged(manifest.error());
  if (manifest.value().identity != container.identity()) {
    return error(ErrorKind::bad_input, "mirror {}: identity: wanted {:016x} (of {}), got {:016x}",
                 folder, container.identity(), container.folder(), manifest.value().identity);
  }
  Result<Mirror> mirror = mirror_of(manifest.value(), folder, container);
  if (!mirror.ok()) return damaged(mirror.error());
  return mirror;
}

bool is_inside(const std::string& folder, const Container& container) {
  std::error_code failure;
  const auto outer = std::filesystem::canonical(container.folder(), failure);
  if (failure) return false;
  const auto inner = std::filesystem::weakly_canonical(folder, failure);
  if (failure || inner == outer) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::optional<std::string> same_device_warning(const std::string& folder,
                                               const Container& container) {
  for (const std::string& path : expert_files(container)) {
    const auto original = status_of(path);
    auto copy = status_of(folder + "/" + name_of(path));
    if (!copy) copy = status_of(folder);
    if (!copy) copy = status_of(parent_folder(folder));
    if (!original || !copy || original->st_dev != copy->st_dev) continue;
    return fmt::format("mirror {}: on the device of {}, which gives no more for a second copy",
                       folder, container.folder());
  }
  return std::nullopt;
}

}  // namespace glmd
