// Files as values: a descriptor that closes itself, whole reads and writes, and publication that is
// atomic. Every error names the path, the offset, what was wanted and what came.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/result.h"

namespace glmd {

// What errno says of a file: not_found, denied, else io. Too many open files come with the limit.
Error file_error(const std::string& path, std::string_view doing);
// The same of a place to write: what is not there is then its folder, and no input that is missing,
// so denied, else io.
Error output_error(const std::string& path, std::string_view doing);

class File {
 public:
  // Regular files only, so that a pipe laid among a model's files is an error, not a wait for ever.
  static Result<File> open_read_only(const std::string& path);
  // A pipe too, whose writer may come later: poll_until() tells when there is something to read.
  static Result<File> open_file_or_pipe(const std::string& path);
  // O_DIRECT where the file system has it for blocks of direct_alignment; `is_direct` tells.
  static constexpr int64_t direct_alignment = 4096;
  static Result<File> open_direct(const std::string& path);
  static Result<File> create(const std::string& path, uint32_t mode = 0644);  // truncates
  static Result<File> open_append(const std::string& path, uint32_t mode = 0644);

  File() = default;
  explicit File(int descriptor, std::string path, bool is_direct = false);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  bool is_direct() const { return is_direct_; }
  Result<int64_t> size_bytes() const;

  // All of `target`, or an error: a short file is an error. Thread: any (pread).
  Result<void> read_at(int64_t offset, std::span<uint8_t> target) const;
  Result<void> write(std::span<const uint8_t> bytes);  // at the current position
  Result<void> write_at(int64_t offset, std::span<const uint8_t> bytes);
  void start_sync(int64_t offset, int64_t bytes);  // lets the disk begin; sync() tells of failures
  Result<void> sync();

 private:
  int descriptor_ = -1;
  std::string path_;
  bool is_direct_ = false;
};

// Refuses a Git LFS pointer: what git leaves in the place of a file that it did not download.
Result<void> check_is_downloaded(const File& file);
// Up to its end, also where that is known only then (/proc). A regular file, and no such pointer.
Result<std::string> read_file(const std::string& path, int64_t bytes_max);
// The same of what a user named for input: a pipe or a terminal is waited for, at most until
// `deadline_ms` of steady_ms() (unset: for ever), then `timeout`.
Result<std::string> read_input(const std::string& path, int64_t bytes_max,
                               std::optional<int64_t> deadline_ms = {});
Result<std::string> read_standard_input(int64_t bytes_max, std::optional<int64_t> deadline_ms = {});
// poll() of one descriptor, at most until then.
int poll_until(int descriptor, short events, std::optional<int64_t> deadline_ms);
// Writes beside `path`, syncs, renames: readers see the old file or the whole new one. Where that
// fails, nothing is left beside it.
Result<void> write_file_atomically(const std::string& path, std::string_view content,
                                   uint32_t mode = 0644);
Result<std::vector<std::string>> list_directory(const std::string& path);  // names, sorted
bool path_exists(const std::string& path);  // false only where it certainly does not
// What the kernel lets us do as who acts, R_OK, W_OK and X_OK of <unistd.h> together; `errno` tells
// what is in the way.
bool may_access(const std::string& path, int rights);
// Where `path`, which has no slash at the end, lies.
std::string parent_folder(const std::string& path);

// What we may still write where `folder` lies.
Result<int64_t> free_bytes(const std::string& folder);
// Room for so much, and for the reserve beside it; else io, as of a write that fills the disk.
Result<void> check_free_space(const std::string& folder, int64_t wanted_bytes,
                              int64_t reserve_bytes = 0);

}  // namespace glmd
