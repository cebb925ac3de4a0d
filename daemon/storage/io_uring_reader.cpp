#include "storage/io_uring_reader.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "platform/time_slice.h"

namespace glmd {
namespace {

constexpr uint64_t wake_up_data = UINT64_MAX;

// Completions are gathered by the thread that waits for them, not by interrupting it. Kernels
// before 6.1 do not know that: a plain ring does the same work.
int init_ring(unsigned entries, io_uring* ring) {
#ifdef IORING_SETUP_DEFER_TASKRUN
  constexpr unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  if (io_uring_queue_init(entries, ring, flags) == 0) return 0;
#endif
  return io_uring_queue_init(entries, ring, 0);
}

// Before Linux 5.12 a ring counts against the limit of locked memory.
Error ring_error(std::string_view doing, int result) {
  const ErrorKind kind = result == -ENOMEM ? ErrorKind::no_memory : ErrorKind::unavailable;
  return error(kind, "io_uring: {}: {}", doing, std::strerror(-result));
}

}  // namespace

Result<void> IoUringReader::probe() {
  TRY(start({}, 1, {}));
  return {};
}

Result<std::unique_ptr<IoUringReader>> IoUringReader::open(const std::vector<std::string>& paths,
                                                           int in_flight_max,
                                                           const ReadQueueOptions& options) {
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back(TRY(File::open_direct(path)));
  return start(std::move(files), in_flight_max, options);
}

Result<std::unique_ptr<IoUringReader>> IoUringReader::start(std::vector<File> files,
                                                            int in_flight_max,
                                                            const ReadQueueOptions& options) {
  File wake_up(::eventfd(0, EFD_CLOEXEC), "eventfd");
  if (wake_up.descriptor() < 0) return ring_error("make an eventfd", -errno);
  std::unique_ptr<IoUringReader> reader(
      new IoUringReader(std::move(files), std::move(wake_up), in_flight_max, options));
  std::promise<Result<void>> is_set_up;
  reader->thread_ = std::thread([&reader = *reader, &is_set_up] {
    // The ring belongs to the thread that makes it.
    const Result<void> set_up = reader.set_up();
    is_set_up.set_value(set_up);
    if (set_up.ok()) reader.serve();
  });
  TRY(is_set_up.get_future().get());
  return reader;
}

IoUringReader::IoUringReader(std::vector<File> files, File wake_up, int in_flight_max,
                             const ReadQueueOptions& options)
    : queue_(std::move(files), options), wake_up_(std::move(wake_up)) {
  CHECK(in_flight_max >= 1);
  slots_.resize(static_cast<size_t>(in_flight_max));
  for (size_t slot = slots_.size(); slot-- > 0;) free_slots_.push_back(slot);
}

Result<void> IoUringReader::set_up() {
  int result = init_ring(static_cast<unsigned>(slots_.size()) + 1, &ring_);
  if (result < 0) return ring_error("set up", result);
  has_ring_ = true;
  std::vector<int> descriptors;
  for (const File& file : queue_.files()) descriptors.push_back(file.descriptor());
  descriptors.push_back(wake_up_.descriptor());
  result = io_uring_register_files(&ring_, descriptors.data(),
                                   static_cast<unsigned>(descriptors.size()));
  if (result < 0) return ring_error("register files", result);
  return try_out();
}

// A filter of system calls may refuse the one that submits and allow the others: what the first
// read would meet is met here.
Result<void> IoUringReader::try_out() {
  wake();
  prepare_wake_up();
  int result = io_uring_submit(&ring_);
  if (result < 0) return ring_error("submit", result);
  io_uring_cqe* completion = nullptr;
  do {
    result = io_uring_wait_cqe(&ring_, &completion);
  } while (result == -EINTR);
  if (result < 0) return ring_error("wait", result);
  result = completion->res;
  io_uring_cqe_seen(&ring_, completion);
  if (result < 0) return ring_error("read", result);
  return {};
}

IoUringReader::~IoUringReader() {
  queue_.close();
  wake();
  if (thread_.joinable()) thread_.join();  // it may be that none could be made
  if (has_ring_) io_uring_queue_exit(&ring_);
}

void IoUringReader::submit(const ReadRequest& request) {
  queue_.submit(request);
  wake();
}

void IoUringReader::promote(uint64_t tag) {
  queue_.promote(tag);
  wake();  // look-ahead may have been at its limit
}

void IoUringReader::wake() {
  const uint64_t one = 1;
  while (::write(wake_up_.descriptor(), &one, sizeof one) < 0) CHECK(errno == EINTR);
}

void IoUringReader::serve() {
  ask_for_short_time_slice();
  prepare_wake_up();
  for (;;) {
    begin_segments();
    submit_and_wait(0);
    queue_.hand_over();
    if (queue_.is_closed() && free_slots_.size() == slots_.size()) return;
    submit_and_wait(1);
    reap();
  }
}

void IoUringReader::submit_and_wait(unsigned completions) {
  const int submitted = io_uring_submit_and_wait(&ring_, completions);
  CHECK(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
}

void IoUringReader::begin_segments() {
  while (!free_slots_.empty()) {
    const std::optional<ReadSegment> segment = queue_.try_take();
    if (!segment) return;
    const size_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = *segment;
    prepare(slot);
  }
}

// Never without an entry: the ring has one for each slot and one for the eventfd.
void IoUringReader::prepare(size_t slot) {
  const ReadSegment& segment = slots_[slot];
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  CHECK(entry != nullptr);
  io_uring_prep_read(entry, segment.file, segment.target, static_cast<unsigned>(segment.bytes),
                     static_cast<uint64_t>(segment.offset));
  entry->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(entry, slot);
}

void IoUringReader::prepare_wake_up() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  CHECK(entry != nullptr);
  const auto wake_up_file = static_cast<int>(queue_.files().size());
  io_uring_prep_read(entry, wake_up_file, &wake_up_count_, sizeof wake_up_count_, 0);
  entry->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(entry, wake_up_data);
}

void IoUringReader::reap() {
  io_uring_cqe* completion = nullptr;
  while (io_uring_peek_cqe(&ring_, &completion) == 0) {
    const uint64_t data = io_uring_cqe_get_data64(completion);
    const int result = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (data == wake_up_data) {
      prepare_wake_up();
      continue;
    }
    const auto slot = static_cast<size_t>(data);
    if (queue_.advance(slots_[slot], result)) {
      prepare(slot);
    } else {
      free_slots_.push_back(slot);
    }
  }
}

}  // namespace glmd
