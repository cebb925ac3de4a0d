#include "tools/convert/container_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "storage/mirror.h"
#include "tools/convert/journal.h"

namespace glmd {

Result<std::string> target_folder(std::string given, std::string_view what) {
  const auto refuse = [&](std::string_view got, std::string_view wanted) {
    return error(ErrorKind::usage, "{} {}: wanted {}, got {}", what, given, wanted, got);
  };
  while (given.size() > 1 && given.ends_with('/')) given.pop_back();
  const std::string name = std::filesystem::path(given).filename().string();
  if (name.empty() || name == "." || name == "..")
    return refuse("none", "the name of a folder to make");
  struct statx status;
  if (::statx(AT_FDCWD, given.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &status) != 0) return given;
  if (S_ISLNK(status.stx_mode)) return refuse("a symbolic link", "a folder or a new name");
  if ((status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)
    return refuse("a mount point", "a folder inside of it, " + given + "/NAME");
  return given;
}

namespace {

bool has_file(const std::string& folder, const char* name) {
  return path_exists(folder + "/" + name);
}

Result<void> lock(const File& folder) {
  if (::flock(folder.descriptor(), LOCK_EX | LOCK_NB) == 0) return {};
  const std::string& path = folder.path();
  if (errno != EWOULDBLOCK) return output_error(path, "lock");
  const char* who = has_file(path, Journal::file_name)          ? "another glmd-convert writes it"
                    : has_file(path, MirrorManifest::file_name) ? "another glmd-mirror stages it"
                                                                : "another program writes it";
  return error(ErrorKind::busy, "{}: {}", path, who);
}

Result<File> open_folder(const std::string& path) {
  File folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
  if (folder.descriptor() >= 0) return folder;
  if (errno == ENOTDIR)
    return error(ErrorKind::usage, "{}: exists, not touched: no folder; remove it first", path);
  return output_error(path, "open");
}

}  // namespace

Result<File> hold_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return output_error(path, "make folder");
  File folder = TRY(open_folder(path));
  TRY(lock(folder));
  return folder;
}

Result<void> check_not_held(const std::string& path) {
  const File folder = TRY(open_folder(path));
  return lock(folder);
}

Error foreign_folder(const std::string& path) {
  std::string what = "files of others; remove them first";
  const Result<std::vector<std::string>> names = list_directory(path);
  const auto is_tensors = [](const std::string& name) { return name.ends_with(".safetensors"); };
  if (!names.ok()) {
    what = "it cannot be read";
  } else if (has_file(path, Journal::file_name)) {
    what = "a conversion broken off; glmd-convert continues it, or remove it first";
  } else if (const auto mirror = MirrorManifest::read(path); mirror.ok()) {
    what = fmt::format(
        "a mirror of the container {:016x} begun; glmd-mirror stage of that container continues "
        "it, or remove it first",
        mirror.value().identity);
  } else if (names.value().empty()) {
    what = "an empty folder; remove it first";
  } else if (std::any_of(names.value().begin(), names.value().end(), is_tensors)) {
    what = "an unfinished container, as glmd-make-model leaves when killed; remove it first";
  }
  return error(ErrorKind::usage, "{}: exists, not touched: {}", path, what);
}

Result<void> sync_folder(const std::string& path) {
  File folder = TRY(open_folder(path));
  return folder.sync();
}

std::vector<StoredTensor> stored_tensors(const PlannedFile& file) {
  std::vector<StoredTensor> tensors;
  for (const PlannedTensor& planned : file.tensors) {
    const InventoryEntry& entry = planned.entry;
    StoredTensor stored{.name = entry.name, .dtype = "U8", .shape = {planned.bytes}};
    stored.bytes = planned.bytes;
    if (entry.layout == TensorLayout::vector) {
      stored.dtype = "F32";
      stored.shape = {entry.columns};
    } else if (entry.layout != TensorLayout::expert && !is_quantised(planned.format)) {
      stored.dtype = planned.format == BlockFormat::f32   ? "F32"
                     : planned.format == BlockFormat::f16 ? "F16"
                                                          : "BF16";
      stored.shape = {entry.layout == TensorLayout::gate_up ? 2 * entry.rows : entry.rows,
                      entry.columns};
    }
    tensors.push_back(std::move(stored));
  }
  return tensors;
}

void describe_file(const PlannedFile& file,
                   const std::map<std::string, uint64_t, std::less<>>& hashes, Manifest& manifest) {
  manifest.files.push_back({file.name, SafetensorsWriter::file_bytes(stored_tensors(file))});
  for (const PlannedTensor& tensor : file.tensors) {
    const auto hash = hashes.find(tensor.entry.name);
    CHECK(hash != hashes.end());
    manifest.tensors[tensor.entry.name] = {.layout = tensor.entry.layout,
                                           .format = tensor.format,
                                           .rows = tensor.entry.rows,
                                           .columns = tensor.entry.columns,
                                           .hash = hash->second};
  }
}

Result<void> write_accompanying(const std::string& folder, std::string_view name,
                                std::string_view content, Manifest& manifest) {
  manifest.accompanying.push_back({.name = std::string(name),
                                   .bytes = static_cast<int64_t>(content.size()),
                                   .hash = hash_bytes(content)});
  return write_file_atomically(fmt::format("{}/{}", folder, name), content);
}

Result<void> publish_folder(const std::string& partial, const std::string& target) {
  TRY_CONTEXT(Container::open(partial), "checking what was written");
  TRY(sync_folder(partial));
  if (::rename(partial.c_str(), target.c_str()) != 0)
    return output_error(partial, "rename to " + target);
  return sync_folder(parent_folder(target));
}

}  // namespace glmd
