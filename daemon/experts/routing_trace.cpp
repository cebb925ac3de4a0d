#include "experts/routing_trace.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "storage/manifest.h"

namespace glmd {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view magic = "GLMDRTNG";
constexpr uint32_t version = 2, version_without_hash = 1;
constexpr int64_t trace_bytes_max = int64_t{1} << 33;
constexpr int64_t layers_max = 1024, experts_max = 1 << 16, rows_max = 1 << 20;
constexpr int64_t expert_bytes_max = int64_t{1} << 40;
constexpr size_t waiting_bytes_max = 16 << 20, write_bytes = 256 << 10, read_bytes = 256 << 10;

// Of the header, what lies between the magic number and what each layer adds.
struct FixedHeader {
  uint32_t version = 0, layers = 0;
  uint64_t identity = 0;
  uint32_t experts = 0, chosen = 0;

  int64_t header_bytes() const {
    const int64_t checksum_bytes = version == version_without_hash ? 0 : 8;
    return std::ssize(magic) + static_cast<int64_t>(sizeof *this) + layers * int64_t{8} +
           checksum_bytes;
  }
};
static_assert(sizeof(FixedHeader) == 24);

template <typename T>
void append(std::vector<uint8_t>& bytes, const T* values, size_t count) {
  const auto* begin = reinterpret_cast<const uint8_t*>(values);
  bytes.insert(bytes.end(), begin, begin + count * sizeof(T));
}

void append_u32(std::vector<uint8_t>& bytes, uint32_t value) {
  append(bytes, &value, 1);
}

std::vector<uint8_t> header_bytes(const RoutingShape& shape) {
  const FixedHeader fixed{.version = version,
                          .layers = static_cast<uint32_t>(shape.expert_bytes.size()),
                          .identity = shape.identity,
                          .experts = static_cast<uint32_t>(shape.experts),
                          .chosen = static_cast<uint32_t>(shape.chosen)};
  std::vector<uint8_t> bytes;
  append(bytes, magic.data(), magic.size());
  append(bytes, &fixed, 1);
  append(bytes, shape.expert_bytes.data(), shape.expert_bytes.size());
  const uint64_t hash = hash_bytes(std::span<const uint8_t>(bytes));
  append(bytes, &hash, 1);
  return bytes;
}

}  // namespace

RoutingShape routing_shape(const Container& container) {
  const CheckpointConfig& config = container.checkpoint();
  RoutingShape shape{.identity = container.identity(),
                     .experts = config.n_routed_experts,
                     .chosen = config.experts_per_token,
                     .expert_bytes = {}};
  for (int64_t layer = 0; layer < config.all_layers(); ++layer) {
    const Tensor* expert = container.find(fmt::format("layers.{}.experts.0", layer));
    shape.expert_bytes.push_back(expert == nullptr ? 0 : expert->bytes);
  }
  return shape;
}

Result<RoutingTraceReader> RoutingTraceReader::open(const std::string& path) {
  File file = TRY(File::open_file_or_pipe(path));
  const int64_t file_bytes = TRY(file.size_bytes());
  if (file_bytes > trace_bytes_max) {
    return error(ErrorKind::bad_input, "{}: wanted at most {} bytes, got {}", path, trace_bytes_max,
                 file_bytes);
  }
  RoutingTraceReader reader(std::move(file), file_bytes);
  TRY_CONTEXT(reader.read_header(), path);
  return reader;
}

RoutingTraceReader::RoutingTraceReader(File file, int64_t file_bytes)
    : file_(std::move(file)), file_bytes_(file_bytes), buffer_(read_bytes) {}

// What comes next, at least a byte of it; empty at the end.
Result<std::span<const uint8_t>> RoutingTraceReader::peek() {
  while (begin_ == end_) {
    poll_until(file_.descriptor(), POLLIN, {});
    const ssize_t got = ::read(file_.descriptor(), buffer_.data(), buffer_.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return error(ErrorKind::io, "read at {}: {}", offset_, std::strerror(errno));
    begin_ = 0;
    end_ = static_cast<size_t>(got);
    if (offset_ + got > trace_bytes_max)
      return error(ErrorKind::bad_input, "wanted at most {} bytes, got more", trace_bytes_max);
    break;
  }
  return std::span<const uint8_t>(buffer_).subspan(begin_, end_ - begin_);
}

// False where the file ends before. Memory is taken as bytes come: counts may lie.
template <typename T>
Result<bool> RoutingTraceReader::take(std::vector<T>& values, int64_t count) {
  int64_t left = count * static_cast<int64_t>(sizeof(T));
  values.clear();
  for (size_t done = 0; left > 0;) {
    std::span<const uint8_t> bytes = TRY(peek());
    if (bytes.empty()) return false;
    bytes = bytes.first(std::min(bytes.size(), static_cast<size_t>(left)));
    values.resize((done + bytes.size() + sizeof(T) - 1) / sizeof(T));
    std::memcpy(reinterpret_cast<uint8_t*>(values.data()) + done, bytes.data(), bytes.size());
    done += bytes.size();
    left -= std::ssize(bytes);
    begin_ += bytes.size();
    offset_ += std::ssize(bytes);
  }
  return true;
}

Result<void> RoutingTraceReader::read_header() {
  const auto cut = [] { return error(ErrorKind::bad_input, "the header is cut off"); };
  std::vector<uint8_t> start, header;
  const bool has_magic = TRY(take(start, std::ssize(magic)));
  if (!std::equal(start.begin(), start.end(), magic.begin()))
    return error(ErrorKind::bad_input, "not a routing trace");
  header = start;
  std::vector<FixedHeader> fixed;
  if (!has_magic || !TRY(take(fixed, 1))) return cut();
  append(header, fixed.data(), fixed.size());
  version_ = fixed[0].version;
  if (version_ != version && version_ != version_without_hash) {
    return error(ErrorKind::bad_input, "trace version: wanted {} or {}, got {}",
                 version_without_hash, version, version_);
  }
  const int64_t layers = fixed[0].layers;
  shape_.identity = fixed[0].identity;
  shape_.experts = fixed[0].experts;
  shape_.chosen = fixed[0].chosen;
  if (layers < 1 || layers > layers_max) {
    return error(ErrorKind::bad_input, "layers: wanted 1 to {}, got {}", layers_max, layers);
  }
  if (shape_.experts < 1 || shape_.experts > experts_max) {
    return error(ErrorKind::bad_input, "experts: wanted 1 to {}, got {}", experts_max,
                 shape_.experts);
  }
  if (shape_.chosen < 1 || shape_.chosen > shape_.experts) {
    return error(ErrorKind::bad_input, "chosen experts: wanted 1 to {}, got {}", shape_.experts,
                 shape_.chosen);
  }
  if (!TRY(take(shape_.expert_bytes, layers))) return cut();
  append(header, shape_.expert_bytes.data(), shape_.expert_bytes.size());
  for (const int64_t bytes : shape_.expert_bytes) {
    if (bytes < 0 || bytes > expert_bytes_max) {
      return error(ErrorKind::bad_input, "bytes of an expert: wanted 0 to {}, got {}",
                   expert_bytes_max, bytes);
    }
  }
  row_of_.assign(static_cast<size_t>(shape_.experts), -1);
  if (version_ == version_without_hash) return {};
  std::vector<uint64_t> wanted;
  if (!TRY(take(wanted, 1))) return cut();
  const uint64_t got = hash_bytes(std::span<const uint8_t>(header));
  if (got == wanted[0]) return {};
  return error(ErrorKind::corrupt, "header: checksum: wanted {:016x}, got {:016x}", wanted[0], got);
}

Result<bool> RoutingTraceReader::next(RoutingRecord& record) {
  return TRY_CONTEXT(read_record(record), file_.path());
}

Result<bool> RoutingTraceReader::read_record(RoutingRecord& record) {
  const int64_t offset = offset_;
  std::vector<uint32_t>& head = record.positions;  // for a moment
  if (!TRY(take(head, 2))) return end(offset);
  const int64_t layer = head[0], rows = head[1];
  if (layer >= std::ssize(shape_.expert_bytes) || shape_.expert_bytes[layer] == 0) {
    return error(ErrorKind::bad_input, "record at {}: layer {} has no experts", offset, layer);
  }
  if (rows < 1 || rows > rows_max) {
    return error(ErrorKind::bad_input, "record at {}: rows: wanted 1 to {}, got {}", offset,
                 rows_max, rows);
  }
  record.layer = static_cast<int32_t>(layer);
  if (!TRY(take(record.positions, rows))) return end(offset);
  if (!TRY(take(record.experts, rows * shape_.chosen))) return end(offset);
  for (int64_t i = 0; i < std::ssize(record.experts); ++i) {
    const uint16_t expert = record.experts[i];
    if (expert >= shape_.experts) {
      return error(ErrorKind::bad_input, "record at {}: expert: wanted 0 to {}, got {}", offset,
                   shape_.experts - 1, expert);
    }
    const int64_t row = rows_ + i / shape_.chosen;
    if (row_of_[expert] == row) {
      return error(ErrorKind::bad_input, "record at {}: expert {} twice in a row", offset, expert);
    }
    row_of_[expert] = row;
    expert_max_ = std::max<int64_t>(expert_max_, expert);
  }
  rows_ += rows;
  return true;
}

// Without a checksum only what the records belie can be found: of eight choices for each expert
// that the header counts, none fell on the upper half.
Result<bool> RoutingTraceReader::end(int64_t record_offset) {
  is_cut_ = offset_ > record_offset;
  const bool is_long = rows_ * shape_.chosen >= 8 * shape_.experts;
  if (version_ == version_without_hash && is_long && expert_max_ < shape_.experts / 2) {
    return error(ErrorKind::bad_input,
                 "experts: the header says {}, of {} choices none is above {}", shape_.experts,
                 rows_ * shape_.chosen, expert_max_);
  }
  return false;
}

namespace {

// What lies where a trace shall be written.
enum class Found { nothing, no_records, trace };

// Only regular files: who reads a pipe may stop to, and then its end would be waited for.
Result<Found> find_trace(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return Found::nothing;
    return output_error(path, "stat");
  }
  if (!S_ISREG(status.st_mode)) {
    return error(ErrorKind::config, "{}: wanted a regular file, got a {}", path,
                 S_ISDIR(status.st_mode) ? "folder" : "pipe, socket or device");
  }
  if (status.st_size == 0) return Found::no_records;
  const File file = TRY(File::open_read_only(path));
  std::array<uint8_t, 16> start{};  // magic, version, layers
  const Result<void> read = file.read_at(0, start);
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (!read.ok() || !text.starts_with(magic)) {
    return error(ErrorKind::config, "{}: exists and is no routing trace, not touched", path);
  }
  FixedHeader fixed;
  std::copy(start.begin() + magic.size(), start.end(), reinterpret_cast<uint8_t*>(&fixed));
  return status.st_size > fixed.header_bytes() ? Found::trace : Found::no_records;
}

// Where the file system has such locks, no two write one trace.
Result<void> hold_trace(const File& file) {
  if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
  return error(ErrorKind::busy, "{}: another program writes this trace", file.path());
}

// An earlier trace makes room; one without records, as each of many failed starts leaves it, is not
// worth the place of a better one.
Result<void> keep_earlier(const std::string& path, Found found) {
  const File earlier = TRY(File::open_read_only(path));
  TRY(hold_trace(earlier));
  const bool is_moved = found == Found::trace
                            ? ::rename(path.c_str(), kept_trace_path(path).c_str()) == 0
                            : ::unlink(path.c_str()) == 0;
  if (!is_moved) return output_error(path, "rename to " + kept_trace_path(path));
  return {};
}

Result<File> begin_trace(const std::string& path) {
  TRY(check_trace_place(path));
  const Found found = TRY(find_trace(path));
  if (found != Found::nothing) TRY(keep_earlier(path, found));
  // Neither truncated nor waited for, whatever came there meanwhile.
  constexpr int flags = O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC;
  File file(::open(path.c_str(), flags, 0600), path);
  if (file.descriptor() < 0) return output_error(path, "open");
  TRY(hold_trace(file));
  if (TRY(find_trace(path)) != Found::no_records || TRY(file.size_bytes()) != 0)
    return error(ErrorKind::busy, "{}: another program made it meanwhile", path);
  return file;
}

}  // namespace

std::string kept_trace_path(const std::string& path) {
  return path + ".1";
}

Result<void> check_trace_place(const std::string& path) {
  TRY(find_trace(path));
  TRY(find_trace(kept_trace_path(path)));  // it would be replaced
  return {};
}

Result<std::unique_ptr<RoutingTraceWriter>> RoutingTraceWriter::create(
    const std::string& path, const RoutingShape& shape, std::function<void(const Error&)> on_end) {
  if (shape.experts > experts_max) {
    return error(ErrorKind::bad_input, "{}: experts of a layer: wanted at most {}, got {}", path,
                 experts_max, shape.experts);
  }
  File file = TRY(begin_trace(path));  // not within new: what it allocated would be lost
  std::unique_ptr<RoutingTraceWriter> writer(
      new RoutingTraceWriter(std::move(file), std::move(on_end)));
  writer->thread_ =
      std::thread([raw = writer.get(), header = header_bytes(shape)] { raw->run(header); });
  return writer;
}

RoutingTraceWriter::RoutingTraceWriter(File file, std::function<void(const Error&)> on_end)
    : file_(std::move(file)), on_end_(std::move(on_end)) {}

RoutingTraceWriter::~RoutingTraceWriter() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();  // it may be that none could be made
}

void RoutingTraceWriter::routed(const RoutedRows& rows) {
  bool is_due = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_ended_ || is_overrun_) return;
    const size_t bytes = 8 + rows.positions.size_bytes() + rows.experts.size_bytes();
    if (waiting_.size() + bytes > waiting_bytes_max) {
      is_overrun_ = true;
    } else {
      append_u32(waiting_, static_cast<uint32_t>(rows.layer));
      append_u32(waiting_, static_cast<uint32_t>(rows.positions.size()));
      append(waiting_, rows.positions.data(), rows.positions.size());
      append(waiting_, rows.experts.data(), rows.experts.size());
    }
    is_due = is_overrun_ || waiting_.size() >= write_bytes;
  }
  if (is_due) wake_.notify_one();
}

Result<void> RoutingTraceWriter::write(const std::vector<uint8_t>& bytes) {
  TRY(file_.write(bytes));
  written_bytes_ += std::ssize(bytes);
  return {};
}

// False: the trace ends.
bool RoutingTraceWriter::write_or_end(const std::vector<uint8_t>& bytes, bool is_overrun) {
  Result<void> result = write(bytes);
  if (result.ok() && is_overrun) {
    result =
        error(ErrorKind::io, "{}: {} bytes wait for a slow disk", file_.path(), waiting_bytes_max);
  }
  if (result.ok()) return true;
  // The part of a record that may have been written goes; where even that fails, the reader takes
  // it for a cut. Without its header it is no trace at all.
  [[maybe_unused]] int status = ::ftruncate(file_.descriptor(), written_bytes_);
  if (written_bytes_ == 0) status = ::unlink(file_.path().c_str());
  on_end_(result.error());
  return false;
}

void RoutingTraceWriter::run(const std::vector<uint8_t>& header) {
  // Above a limit on file sizes write() shall answer EFBIG, not end the process.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);

  bool is_written = write_or_end(header, false), was_closing = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (is_written && !was_closing) {
    wake_.wait(lock,
               [this] { return is_closing_ || is_overrun_ || waiting_.size() >= write_bytes; });
    const bool was_overrun = is_overrun_;
    was_closing = is_closing_;
    std::vector<uint8_t> bytes;
    bytes.swap(waiting_);
    lock.unlock();
    is_written = write_or_end(bytes, was_overrun);
    lock.lock();
  }
  is_ended_ = !is_written;
}

}  // namespace glmd
