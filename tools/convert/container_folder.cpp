#include "tools/convert/container_folder.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace glmd {
namespace {

constexpr int64_t spare_bytes = int64_t{16} << 20;  // manifest, journal, folder

Result<void> sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return system_error(path, "open");
  File folder(descriptor, path);
  return folder.sync();
}

}  // namespace

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

Error system_error(const std::string& path, std::string_view doing) {
  const int number = errno;
  const ErrorKind kind = number == EACCES || number == EPERM ? ErrorKind::denied : ErrorKind::io;
  return error(kind, "{}: {}: {}", path, doing, std::strerror(number));
}

Result<void> check_free_space(const std::string& folder, int64_t wanted_bytes) {
  struct statvfs status;
  if (::statvfs(folder.c_str(), &status) != 0) return system_error(folder, "ask for free space");
  const int64_t free_bytes = static_cast<int64_t>(status.f_bavail * status.f_frsize);
  if (free_bytes >= wanted_bytes + spare_bytes) return {};
  return error(ErrorKind::io, "{}: free space: wanted {} bytes, got {}", folder,
               wanted_bytes + spare_bytes, free_bytes);
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

Result<void> publish_folder(const std::string& partial, const std::string& target) {
  TRY_CONTEXT(Container::open(partial), "checking what was written");
  TRY(sync_folder(partial));
  if (::rename(partial.c_str(), target.c_str()) != 0)
    return system_error(partial, "rename to " + target);
  const std::filesystem::path parent = std::filesystem::path(target).parent_path();
  return sync_folder(parent.empty() ? "." : parent.string());
}

}  // namespace glmd
