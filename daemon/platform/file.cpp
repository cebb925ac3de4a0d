#include "platform/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>

#include "platform/clock.h"
#include "platform/open_files.h"

namespace glmd {
namespace {

constexpr size_t file_step_bytes = 4096;

ErrorKind kind_of(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return ErrorKind::not_found;
    case EACCES:
    case EPERM:
      return ErrorKind::denied;
    default:
      return ErrorKind::io;
  }
}

Result<File> open_file(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) return file_error(path, "open");
  return File(descriptor, path, (flags & O_DIRECT) != 0);
}

}  // namespace

Error file_error(const std::string& path, std::string_view doing) {
  const int number = errno;
  if (number == EMFILE) {
    return error(ErrorKind::io, "{}: {}: {}: {}", path, doing, std::strerror(number),
                 open_files_limit_text());
  }
  return error(kind_of(number), "{}: {}: {}", path, doing, std::strerror(number));
}

Error output_error(const std::string& path, std::string_view doing) {
  Error failure = file_error(path, doing);
  if (failure.kind == ErrorKind::not_found) failure.kind = ErrorKind::io;
  return failure;
}

enum class Readable { files, files_and_pipes };

// Never a wait: a pipe would be waited for until somebody writes into it.
static Result<File> open_readable(const std::string& path, int flags, Readable readable) {
  File file = TRY(open_file(path, flags | O_NONBLOCK));
  struct stat status;
  if (::fstat(file.descriptor(), &status) != 0) return file_error(path, "stat");
  const bool may_be_pipe = readable == Readable::files_and_pipes;
  if (may_be_pipe && S_ISFIFO(status.st_mode)) return file;
  if (!S_ISREG(status.st_mode)) {
    const std::string_view no_folder = may_be_pipe ? "socket or device" : "pipe, socket or device";
    return error(ErrorKind::bad_input, "{}: wanted a regular file{}, got a {}", path,
                 may_be_pipe ? " or a pipe" : "", S_ISDIR(status.st_mode) ? "folder" : no_folder);
  }
  // io_uring takes O_NONBLOCK for a wish not to wait for the disk either.
  if (::fcntl(file.descriptor(), F_SETFL, flags) != 0) return file_error(path, "set flags");
  return file;
}

Result<File> File::open_read_only(const std::string& path) {
  return open_readable(path, O_RDONLY, Readable::files);
}

Result<File> File::open_file_or_pipe(const std::string& path) {
  return open_readable(path, O_RDONLY, Readable::files_and_pipes);
}

// False where the kernel says that direct reads are not supported or need more than blocks of 4096.
static bool takes_direct_blocks(const File& file) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (::statx(file.descriptor(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    return status.stx_dio_offset_align != 0 &&
           File::direct_alignment % status.stx_dio_offset_align == 0 &&
           File::direct_alignment % status.stx_dio_mem_align == 0;
  }
#endif
  return file.is_direct();
}

Result<File> File::open_direct(const std::string& path) {
  Result<File> direct = open_readable(path, O_RDONLY | O_DIRECT, Readable::files);
  // tmpfs and some network mounts answer EINVAL; any other reason fails again below, with its name.
  if (direct.ok() && takes_direct_blocks(direct.value())) return direct;
  return open_readable(path, O_RDONLY, Readable::files);
}

static Result<File> create_file(const std::string& path, int flags, uint32_t mode) {
  const int descriptor = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, mode);
  if (descriptor < 0) return output_error(path, "open");
  return File(descriptor, path);
}

Result<File> File::create(const std::string& path, uint32_t mode) {
  return create_file(path, O_RDWR | O_TRUNC, mode);
}

Result<File> File::open_append(const std::string& path, uint32_t mode) {
  return create_file(path, O_RDWR | O_APPEND, mode);
}

File::File(int descriptor, std::string path, bool is_direct)
    : descriptor_(descriptor), path_(std::move(path)), is_direct_(is_direct) {}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      is_direct_(other.is_direct_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(is_direct_, other.is_direct_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<int64_t> File::size_bytes() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) return file_error(path_, "stat");
  return static_cast<int64_t>(status.st_size);
}

Result<void> File::read_at(int64_t offset, std::span<uint8_t> target) const {
  size_t done = 0;
  while (done < target.size()) {
    const ssize_t got = ::pread(descriptor_, target.data() + done, target.size() - done,
                                offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return file_error(path_, fmt::format("read {} bytes at {}", target.size(), offset));
    }
    if (got == 0) {
      return error(ErrorKind::bad_input,
                   "{}: read at {}: wanted {} bytes, got {}: the file is short", path_, offset,
                   target.size(), done);
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<void> File::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return file_error(path_, fmt::format("write {} bytes", bytes.size()));
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Result<void> File::write_at(int64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return file_error(path_, fmt::format("write {} bytes at {}", bytes.size(), offset));
    }
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += put;
  }
  return {};
}

void File::start_sync(int64_t offset, int64_t bytes) {
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

Result<void> File::sync() {
  if (::fsync(descriptor_) != 0) return file_error(path_, "sync");
  return {};
}

int poll_until(int descriptor, short events, std::optional<int64_t> deadline_ms) {
  const int64_t left_ms =
      deadline_ms ? std::clamp<int64_t>(*deadline_ms - steady_ms(), 0, INT_MAX) : -1;
  pollfd one{descriptor, events, 0};
  return ::poll(&one, 1, static_cast<int>(left_ms));
}

// Regular files are always ready. A pipe whose last writer left is, too: its end is read.
static Result<void> wait_for_input(int descriptor, const std::string& name,
                                   std::optional<int64_t> deadline_ms) {
  while (true) {
    const int count = poll_until(descriptor, POLLIN, deadline_ms);
    if (count > 0) return {};
    if (count < 0 && errno != EINTR) return file_error(name, "wait");
    if (deadline_ms && steady_ms() >= *deadline_ms) {
      return error(ErrorKind::timeout, "{}: time is up before its end", name);
    }
  }
}

// `size_bytes` is what is expected: 0 of a pipe and in /proc.
static Result<std::string> read_to_end(int descriptor, const std::string& name, int64_t size_bytes,
                                       int64_t bytes_max, std::optional<int64_t> deadline_ms) {
  if (size_bytes > bytes_max) {
    return error(ErrorKind::bad_input, "{}: wanted at most {} bytes, got {}", name, bytes_max,
                 size_bytes);
  }
  std::string content;
  size_t end = 0;
  while (true) {
    TRY(wait_for_input(descriptor, name, deadline_ms));
    // One byte more than the file is said to have tells its end.
    content.resize(std::max(end + file_step_bytes, static_cast<size_t>(size_bytes) + 1));
    const ssize_t got = ::read(descriptor, content.data() + end, content.size() - end);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return file_error(name, "read");
    if (got == 0) break;
    end += static_cast<size_t>(got);
    if (static_cast<int64_t>(end) > bytes_max) {
      return error(ErrorKind::bad_input, "{}: wanted at most {} bytes, got more", name, bytes_max);
    }
  }
  content.resize(end);
  return content;
}

static Result<std::string> read_whole(const File& file, int64_t bytes_max,
                                      std::optional<int64_t> deadline_ms) {
  return read_to_end(file.descriptor(), file.path(), TRY(file.size_bytes()), bytes_max,
                     deadline_ms);
}

Result<void> check_is_downloaded(const File& file) {
  constexpr std::string_view pointer_beginning = "version https://git-lfs.github.com/spec/v1\n";
  constexpr int64_t pointer_bytes_max = 1024;
  const int64_t size_bytes = TRY(file.size_bytes());
  if (size_bytes < std::ssize(pointer_beginning) || size_bytes > pointer_bytes_max) return {};
  std::string beginning(pointer_beginning.size(), '\0');
  TRY(file.read_at(0, {reinterpret_cast<uint8_t*>(beginning.data()), beginning.size()}));
  if (beginning != pointer_beginning) return {};
  return error(ErrorKind::bad_input,
               "{}: a Git LFS pointer of {} bytes: the file itself was never downloaded (git lfs "
               "pull, or the hub's own program, does it)",
               file.path(), size_bytes);
}

Result<std::string> read_file(const std::string& path, int64_t bytes_max) {
  const File file = TRY(File::open_read_only(path));
  TRY(check_is_downloaded(file));
  return read_whole(file, bytes_max, {});
}

Result<std::string> read_input(const std::string& path, int64_t bytes_max,
                               std::optional<int64_t> deadline_ms) {
  // Opening a pipe would wait for its writer, without a limit.
  return read_whole(TRY(open_file(path, O_RDONLY | O_NONBLOCK)), bytes_max, deadline_ms);
}

Result<std::string> read_standard_input(int64_t bytes_max, std::optional<int64_t> deadline_ms) {
  return read_to_end(STDIN_FILENO, "standard input", 0, bytes_max, deadline_ms);
}

static Result<void> write_new_file(const std::string& path, std::string_view content,
                                   uint32_t mode) {
  // What a run that was cut off left there may have another mode, or be no file at all.
  ::unlink(path.c_str());
  File file = TRY(create_file(path, O_RDWR | O_EXCL, mode));
  TRY(file.write({reinterpret_cast<const uint8_t*>(content.data()), content.size()}));
  return file.sync();
}

Result<void> write_file_atomically(const std::string& path, std::string_view content,
                                   uint32_t mode) {
  const std::string temporary = path + ".new";
  Result<void> written = write_new_file(temporary, content, mode);
  if (written.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = file_error(temporary, "rename");
  }
  if (!written.ok()) ::unlink(temporary.c_str());
  return written;
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
  if (!directory) return file_error(path, "list");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool path_exists(const std::string& path) {
  // Where a folder on the way may not be searched, say, whoever opens the file says so.
  return ::access(path.c_str(), F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool may_access(const std::string& path, int rights) {
  if (::faccessat(AT_FDCWD, path.c_str(), rights, AT_EACCESS) == 0) return true;
  // Filters of system calls that are older than faccessat2 answer it so: that is no word on `path`.
  return errno == EPERM && ::access(path.c_str(), rights) == 0;
}

std::string parent_folder(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

Result<int64_t> free_bytes(const std::string& folder) {
  struct statvfs status;
  if (::statvfs(folder.c_str(), &status) != 0) return output_error(folder, "ask for free space");
  return static_cast<int64_t>(status.f_bavail * status.f_frsize);
}

Result<void> check_free_space(const std::string& folder, int64_t wanted_bytes,
                              int64_t reserve_bytes) {
  const int64_t got_bytes = TRY(free_bytes(folder));
  if (got_bytes - reserve_bytes >= wanted_bytes) return {};
  const std::string beside =
      reserve_bytes > 0 ? fmt::format(" beside a reserve of {}", reserve_bytes) : "";
  return error(ErrorKind::io, "{}: free space: wanted {} bytes{}, got {}", folder, wanted_bytes,
               beside, got_bytes);
}

}  // namespace glmd
