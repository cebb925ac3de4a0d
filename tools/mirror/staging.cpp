#include "tools/mirror/staging.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "platform/file.h"
#include "storage/manifest.h"
#include "storage/mirror.h"
#include "tools/convert/container_folder.h"

namespace glmd {
namespace {

std::string partial_of(const std::string& folder) {
  return folder + ".partial";
}

// Kept where it exists; a new one is one hole of that size.
Result<File> open_target(const std::string& path, int64_t bytes) {
  File file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), path);
  if (file.descriptor() < 0) return output_error(path, "open");
  if (::ftruncate(file.descriptor(), bytes) != 0) return output_error(path, "set size");
  return file;
}

// Whether the mirror's file has the expert's bytes.
Result<void> check_expert(const File& file, const Tensor& tensor, std::vector<uint8_t>& buffer) {
  buffer.resize(static_cast<size_t>(tensor.bytes));
  TRY_CONTEXT(file.read_at(tensor.offset, buffer), tensor.name);
  const uint64_t hash = hash_bytes(buffer);
  if (hash == tensor.hash) return {};
  return error(ErrorKind::corrupt, "{}: {}: checksum: wanted {:016x}, got {:016x}", file.path(),
               tensor.name, tensor.hash, hash);
}

std::string target_path(const Container& container, int32_t file, const std::string& folder) {
  const std::filesystem::path original(container.files()[static_cast<size_t>(file)]);
  return folder + "/" + original.filename().string();
}

// What experts of an earlier run take, holes apart.
int64_t staged_bytes(const Container& container, const std::string& partial) {
  int64_t bytes = 0;
  for (size_t file = 0; file < container.files().size(); ++file) {
    struct stat status;
    const std::string path = target_path(container, static_cast<int32_t>(file), partial);
    if (::stat(path.c_str(), &status) == 0) bytes += status.st_blocks * 512;
  }
  return bytes;
}

MirrorManifest manifest_of(const Container& container, const std::vector<const Tensor*>& experts) {
  MirrorManifest manifest;
  manifest.identity = container.identity();
  for (const Tensor* tensor : experts) manifest.experts[tensor->name] = tensor->hash;
  return manifest;
}

std::string text_of(const MirrorManifest& manifest) {
  return manifest.to_json().to_string() + "\n";
}

// Room for mirror.json and the folder.
int64_t manifest_bytes(const Container& container) {
  constexpr int64_t folder_bytes = 64 << 10;
  return std::ssize(text_of(manifest_of(container, even_order(container)))) + folder_bytes;
}

Result<void> write_manifest(const std::string& partial, const MirrorManifest& manifest) {
  return write_file_atomically(partial + "/" + MirrorManifest::file_name, text_of(manifest));
}

// A folder in which a stage of this container may work.
Result<void> check_ours(const Container& container, const std::string& partial) {
  std::vector<std::string> names = TRY(list_directory(partial));
  std::erase(names, MirrorManifest::file_name + std::string(".new"));  // killed while writing it
  if (names.empty()) return {};
  const Result<MirrorManifest> manifest = MirrorManifest::read(partial);
  if (manifest.ok() && manifest.value().identity == container.identity()) return {};
  return foreign_folder(partial);
}

Result<void> release(const File& file, int64_t begin, int64_t end) {
  if (begin >= end) return {};
  if (::fallocate(file.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin,
                  end - begin) == 0) {
    return {};
  }
  return output_error(file.path(), "release what is not wanted");
}

// Where growing a file takes blocks at once, there are no holes, and nothing can be released.
Result<bool> keeps_holes(const File& file) {
  constexpr int64_t grown_bytes = 1 << 20;
  const int64_t bytes = TRY(file.size_bytes());
  struct stat before, after;
  const bool is_known = ::fstat(file.descriptor(), &before) == 0 &&
                        ::ftruncate(file.descriptor(), bytes + grown_bytes) == 0 &&
                        ::fstat(file.descriptor(), &after) == 0 &&
                        ::ftruncate(file.descriptor(), bytes) == 0;
  if (!is_known) return output_error(file.path(), "set size");
  return after.st_blocks == before.st_blocks;
}

// Leaves the experts of one file, in the order of their bytes, and holes between them.
Result<void> release_others(const std::string& path, const std::vector<const Tensor*>& tensors) {
  File file(::open(path.c_str(), O_RDWR | O_CLOEXEC), path);
  if (file.descriptor() < 0) return output_error(path, "open");
  int64_t wanted_bytes = 0, begin = 0;
  Result<void> released;
  for (const Tensor* tensor : tensors) {
    if (released.ok()) released = release(file, begin, tensor->offset);
    begin = tensor->offset + tensor->bytes;
    wanted_bytes += tensor->bytes;
  }
  if (released.ok()) released = release(file, begin, TRY(file.size_bytes()));
  if (released.ok()) return {};
  // A file system that makes no holes of what was written: begun anew if too much is there.
  struct stat status;
  if (::fstat(file.descriptor(), &status) != 0) return file_error(path, "stat");
  if (status.st_blocks * 512 <= wanted_bytes || !TRY(keeps_holes(file))) return {};
  if (::ftruncate(file.descriptor(), 0) != 0) return output_error(path, "set size");
  return {};
}

using ExpertsByFile = std::map<int32_t, std::vector<const Tensor*>>;  // in the order of their bytes

ExpertsByFile by_file(const MirrorPlan& plan) {
  ExpertsByFile files;
  for (const Tensor* tensor : plan.experts) files[tensor->file].push_back(tensor);
  for (auto& [file, tensors] : files) {
    std::sort(tensors.begin(), tensors.end(),
              [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
  }
  return files;
}

Result<void> release_unwanted(const Container& container, const ExpertsByFile& wanted,
                              const std::string& partial) {
  for (int32_t file = 0; file < std::ssize(container.files()); ++file) {
    const std::string path = target_path(container, file, partial);
    struct stat status;
    if (::lstat(path.c_str(), &status) != 0) continue;
    const bool is_ours_alone =
        S_ISREG(status.st_mode) && status.st_nlink == 1;  // no link put there
    const auto tensors = wanted.find(file);
    if (tensors != wanted.end() && is_ours_alone) {
      TRY(release_others(path, tensors->second));
    } else if (::unlink(path.c_str()) != 0) {
      return output_error(path, "remove");
    }
  }
  return {};
}

// The experts of one file. False where `report` wants to stop.
Result<bool> stage_file(const Container& container, int32_t index,
                        const std::vector<const Tensor*>& tensors, const std::string& folder,
                        StageProgress& progress,
                        const std::function<bool(const StageProgress&)>& report) {
  const File original = TRY(File::open_read_only(container.files()[static_cast<size_t>(index)]));
  const int64_t bytes = TRY(original.size_bytes());
  File target = TRY(open_target(target_path(container, index, folder), bytes));
  std::vector<uint8_t> buffer;
  for (const Tensor* tensor : tensors) {
    if (check_expert(target, *tensor, buffer).ok()) {
      progress.bytes_kept += tensor->bytes;
    } else {
      TRY(container.read(*tensor, buffer));  // checks its hash
      TRY_CONTEXT(target.write_at(tensor->offset, buffer), tensor->name);
    }
    progress.bytes_done += tensor->bytes;
    if (!report(progress)) return false;
  }
  TRY(target.sync());
  return true;
}

}  // namespace

Result<void> check_mirror_place(const Container& container, const std::string& folder) {
  if (even_order(container).empty()) {
    return error(ErrorKind::bad_input, "{}: the model has no experts to copy", container.folder());
  }
  if (is_inside(folder, container)) {
    return error(ErrorKind::usage, "{}: wanted a place on another disk, got one inside {}", folder,
                 container.folder());
  }
  if (path_exists(folder)) {
    return error(ErrorKind::usage, "{}: exists already; remove it to stage it anew", folder);
  }
  const std::string partial = partial_of(folder);
  if (!path_exists(partial)) return {};
  TRY(check_not_held(partial));
  return check_ours(container, partial);
}

Result<int64_t> mirror_bytes_available(const Container& container, const std::string& folder,
                                       int64_t reserve_bytes) {
  const int64_t bytes = TRY(free_bytes(parent_folder(folder))) +
                        staged_bytes(container, partial_of(folder)) - manifest_bytes(container);
  return std::max<int64_t>(0, bytes - reserve_bytes);
}

Result<void> check_staging(const Container& container, const MirrorPlan& plan,
                           const std::string& folder, int64_t reserve_bytes) {
  TRY(check_mirror_place(container, folder));
  if (plan.experts.empty()) {
    return error(ErrorKind::io,
                 "{}: no expert fits into what --bytes, --reserve and the disk allow", folder);
  }
  const std::string parent = parent_folder(folder), partial = partial_of(folder);
  TRY(check_free_space(parent,
                       plan.bytes + manifest_bytes(container) - staged_bytes(container, partial),
                       reserve_bytes));
  if (!may_access(parent, W_OK | X_OK)) return output_error(partial, "make folder");
  return {};
}

Result<void> stage_mirror(const Container& container, const MirrorPlan& plan,
                          const std::string& folder, int64_t reserve_bytes,
                          const std::function<bool(const StageProgress&)>& report) {
  TRY(check_staging(container, plan, folder, reserve_bytes));
  const std::string partial = partial_of(folder);
  File held = TRY(hold_folder(partial));
  TRY(check_ours(container, partial));  // it may have come since
  TRY(write_manifest(partial, manifest_of(container, {})));
  const ExpertsByFile files = by_file(plan);
  TRY(release_unwanted(container, files, partial));
  StageProgress progress{.bytes_total = plan.bytes};
  for (const auto& [file, tensors] : files) {
    if (!TRY(stage_file(container, file, tensors, partial, progress, report))) {
      return error(ErrorKind::cancelled, "{}: stopped; the same command continues", partial);
    }
  }
  TRY(write_manifest(partial, manifest_of(container, plan.experts)));
  TRY(held.sync());
  if (::rename(partial.c_str(), folder.c_str()) != 0) return output_error(partial, "rename");
  return sync_folder(parent_folder(folder));
}

std::vector<std::string> verify_mirror(const Container& container, const std::string& folder) {
  const Result<Mirror> mirror = Mirror::open(folder, container);
  if (!mirror.ok()) return {mirror.error().message};
  std::vector<std::string> problems;
  std::vector<uint8_t> buffer;
  for (const auto& [name, tensor] : container.tensors()) {
    if (!mirror.value().expert_places.contains({tensor.file, tensor.offset})) continue;
    const Result<File> file = File::open_read_only(target_path(container, tensor.file, folder));
    const Result<void> sound =
        file.ok() ? check_expert(file.value(), tensor, buffer) : file.error();
    if (!sound.ok()) problems.push_back(sound.error().message);
  }
  return problems;
}

}  // namespace glmd
