#include "experts/routing_trace.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <string_view>

namespace glmd {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view magic = "GLMDRTNG";
constexpr uint32_t version = 1;
constexpr int64_t trace_bytes_max = int64_t{1} << 33;
constexpr int64_t layers_max = 1024, experts_max = 1 << 16, rows_max = 1 << 20;
constexpr int64_t expert_bytes_max = int64_t{1} << 40;
constexpr size_t waiting_bytes_max = 16 << 20, write_bytes = 256 << 10;

template <typename T>
void append(std::vector<uint8_t>& bytes, const T* values, size_t count) {
  const auto* begin = reinterpret_cast<const uint8_t*>(values);
  bytes.insert(bytes.end(), begin, begin + count * sizeof(T));
}

void append_u32(std::vector<uint8_t>& bytes, uint32_t value) {
  append(bytes, &value, 1);
}

std::vector<uint8_t> header_bytes(const RoutingShape& shape) {
  std::vector<uint8_t> bytes;
  append(bytes, magic.data(), magic.size());
  append_u32(bytes, version);
  append_u32(bytes, static_cast<uint32_t>(shape.expert_bytes.size()));
  append(bytes, &shape.identity, 1);
  append_u32(bytes, static_cast<uint32_t>(shape.experts));
  append_u32(bytes, static_cast<uint32_t>(shape.chosen));
  append(bytes, shape.expert_bytes.data(), shape.expert_bytes.size());
  return bytes;
}

// Takes values off the front of the file's bytes.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : all_(bytes), rest_(bytes) {}

  bool has(int64_t bytes) const { return bytes <= std::ssize(rest_); }
  int64_t offset() const { return std::ssize(all_) - std::ssize(rest_); }
  bool is_at_end() const { return rest_.empty(); }

  template <typename T>
  T take() {
    T value;
    take(&value, 1);
    return value;
  }
  template <typename T>
  void take(T* target, size_t count) {
    CHECK(has(static_cast<int64_t>(count * sizeof(T))));
    std::memcpy(target, rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
  }

 private:
  std::string_view all_, rest_;
};

Result<RoutingShape> read_header(Cursor& cursor) {
  constexpr int64_t fixed_bytes = 32;
  if (!cursor.has(fixed_bytes)) return error(ErrorKind::bad_input, "the header is cut off");
  std::array<char, magic.size()> start{};
  cursor.take(start.data(), start.size());
  if (std::string_view(start.data(), start.size()) != magic) {
    return error(ErrorKind::bad_input, "not a routing trace");
  }
  if (const auto got = cursor.take<uint32_t>(); got != version) {
    return error(ErrorKind::bad_input, "trace version: wanted {}, got {}", version, got);
  }
  const int64_t layers = cursor.take<uint32_t>();
  RoutingShape shape;
  shape.identity = cursor.take<uint64_t>();
  shape.experts = cursor.take<uint32_t>();
  shape.chosen = cursor.take<uint32_t>();
  if (layers < 1 || layers > layers_max) {
    return error(ErrorKind::bad_input, "layers: wanted 1 to {}, got {}", layers_max, layers);
  }
  if (shape.experts < 1 || shape.experts > experts_max) {
    return error(ErrorKind::bad_input, "experts: wanted 1 to {}, got {}", experts_max,
                 shape.experts);
  }
  if (shape.chosen < 1 || shape.chosen > shape.experts) {
    return error(ErrorKind::bad_input, "chosen experts: wanted 1 to {}, got {}", shape.experts,
                 shape.chosen);
  }
  if (!cursor.has(layers * 8)) return error(ErrorKind::bad_input, "the header is cut off");
  shape.expert_bytes.resize(static_cast<size_t>(layers));
  cursor.take(shape.expert_bytes.data(), shape.expert_bytes.size());
  for (const int64_t bytes : shape.expert_bytes) {
    if (bytes < 0 || bytes > expert_bytes_max) {
      return error(ErrorKind::bad_input, "bytes of an expert: wanted 0 to {}, got {}",
                   expert_bytes_max, bytes);
    }
  }
  return shape;
}

// False where the record is cut off.
Result<bool> read_record(Cursor& cursor, RoutingTrace& trace) {
  const RoutingShape& shape = trace.shape;
  const int64_t offset = cursor.offset();
  if (!cursor.has(8)) return false;
  const int64_t layer = cursor.take<uint32_t>(), rows = cursor.take<uint32_t>();
  if (layer >= std::ssize(shape.expert_bytes) || shape.expert_bytes[layer] == 0) {
    return error(ErrorKind::bad_input, "record at {}: layer {} has no experts", offset, layer);
  }
  if (rows < 1 || rows > rows_max) {
    return error(ErrorKind::bad_input, "record at {}: rows: wanted 1 to {}, got {}", offset,
                 rows_max, rows);
  }
  if (!cursor.has(rows * (4 + 2 * shape.chosen))) return false;
  const size_t first_row = trace.positions.size(), first_expert = trace.experts.size();
  const auto count = static_cast<size_t>(rows), choices = static_cast<size_t>(rows * shape.chosen);
  trace.steps.push_back({static_cast<int32_t>(layer), static_cast<int64_t>(first_row), rows});
  trace.positions.resize(first_row + count);
  cursor.take(trace.positions.data() + first_row, count);
  trace.experts.resize(first_expert + choices);
  cursor.take(trace.experts.data() + first_expert, choices);
  for (size_t i = first_expert; i < trace.experts.size(); ++i) {
    if (trace.experts[i] >= shape.experts) {
      return error(ErrorKind::bad_input, "record at {}: expert: wanted 0 to {}, got {}", offset,
                   shape.experts - 1, trace.experts[i]);
    }
  }
  return true;
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

Result<RoutingTrace> read_routing_trace(const std::string& path) {
  const std::string content = TRY(read_input(path, trace_bytes_max));
  Cursor cursor(content);
  RoutingTrace trace;
  trace.shape = TRY_CONTEXT(read_header(cursor), path);
  while (!cursor.is_at_end() && !trace.is_cut) {
    trace.is_cut = !TRY_CONTEXT(read_record(cursor, trace), path);
  }
  return trace;
}

Result<std::unique_ptr<RoutingTraceWriter>> RoutingTraceWriter::create(
    const std::string& path, const RoutingShape& shape, std::function<void(const Error&)> on_end) {
  if (shape.experts > experts_max) {
    return error(ErrorKind::bad_input, "{}: experts of a layer: wanted at most {}, got {}", path,
                 experts_max, shape.experts);
  }
  File file = TRY(File::create(path, 0600));  // not within new: what it allocated would be lost
  // Who reads a pipe may stop to, and then its end would be waited for.
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return error(ErrorKind::config, "{}: wanted a regular file, got a pipe or device", path);
  }
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
