#include "tools/mirror/staging.h"

#include <fcntl.h>
#include <sys/file.h>
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

// The folder, held against other runs until it is closed; renaming does not let it go.
Result<File> hold_partial(const std::string& partial) {
  if (::mkdir(partial.c_str(), 0755) != 0 && errno != EEXIST)
    return output_error(partial, "make folder");
  File folder(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), partial);
  if (folder.descriptor() < 0) return output_error(partial, "open");
  if (::flock(folder.descriptor(), LOCK_EX | LOCK_NB) == 0) return folder;
  if (errno != EWOULDBLOCK) return output_error(partial, "lock");
  return error(ErrorKind::busy, "{}: another glmd-mirror stages it", partial);
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

// What an earlier run left there takes, holes apart.
Result<int64_t> staged_bytes(const std::string& partial) {
  int64_t bytes = 0;
  if (!path_exists(partial)) return bytes;
  for (const std::string& name : TRY(list_directory(partial))) {
    struct stat status;
    if (::stat((partial + "/" + name).c_str(), &status) == 0) bytes += status.st_blocks * 512;
  }
  return bytes;
}

std::string target_path(const Container& container, int32_t file, const std::string& folder) {
  const std::filesystem::path original(container.files()[static_cast<size_t>(file)]);
  return folder + "/" + original.filename().string();
}

// The experts of one file, in the order of their bytes. False where `report` wants to stop.
Result<bool> stage_file(const Container& container, int32_t index,
                        std::vector<const Tensor*> tensors, const std::string& folder,
                        StageProgress& progress,
                        const std::function<bool(const StageProgress&)>& report) {
  std::sort(tensors.begin(), tensors.end(),
            [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
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

Result<int64_t> mirror_bytes_available(const std::string& folder, int64_t reserve_bytes) {
  const int64_t bytes =
      TRY(free_bytes(parent_folder(folder))) + TRY(staged_bytes(partial_of(folder)));
  return std::max<int64_t>(0, bytes - reserve_bytes);
}

Result<void> stage_mirror(const Container& container, const MirrorPlan& plan,
                          const std::string& folder, int64_t reserve_bytes,
                          const std::function<bool(const StageProgress&)>& report) {
  if (path_exists(folder)) {
    return error(ErrorKind::usage, "{}: exists already; remove it to stage it anew", folder);
  }
  if (plan.experts.empty()) {
    return error(ErrorKind::io,
                 "{}: no expert fits into what --bytes, --reserve and the disk allow", folder);
  }
  const std::string partial = partial_of(folder);
  const int64_t kept_bytes = TRY(staged_bytes(partial));
  TRY(check_free_space(parent_folder(folder), plan.bytes - kept_bytes, reserve_bytes));
  File held = TRY(hold_partial(partial));
  std::map<int32_t, std::vector<const Tensor*>> by_file;
  MirrorManifest manifest;
  manifest.identity = container.identity();
  for (const Tensor* tensor : plan.experts) {
    by_file[tensor->file].push_back(tensor);
    manifest.experts[tensor->name] = tensor->hash;
  }
  StageProgress progress{.bytes_total = plan.bytes};
  for (auto& [file, tensors] : by_file) {
    if (!TRY(stage_file(container, file, std::move(tensors), partial, progress, report))) {
      return error(ErrorKind::cancelled, "{}: stopped; the same command continues", partial);
    }
  }
  TRY(write_file_atomically(partial + "/" + MirrorManifest::file_name,
                            manifest.to_json().to_string() + "\n"));
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
