#include "storage/read_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/aligned_memory.h"
#include "platform/clock.h"

namespace glmd {

constexpr int64_t segment_bytes_max = int64_t{1} << 30;  // one system call reads no more than 2 GiB

ReadQueue::ReadQueue(std::vector<File> files, const ReadQueueOptions& options)
    : files_(std::move(files)), options_(options), completions_(options.signal) {
  CHECK(options.segment_bytes >= alignment);
  CHECK(options.segment_bytes <= segment_bytes_max);
  CHECK(options.look_ahead_in_flight_max >= 1);
}

// Equal parts: the last one is no crumb.
static int64_t segment_bytes_of(int64_t bytes, int64_t bytes_max) {
  const int64_t count = std::max<int64_t>(1, (bytes + bytes_max - 1) / bytes_max);
  return round_up((bytes + count - 1) / count, ReadQueue::alignment);
}

void ReadQueue::submit(const ReadRequest& request) {
  CHECK(request.file >= 0);
  CHECK(request.file < static_cast<int64_t>(files_.size()));
  CHECK(request.offset >= 0);
  CHECK(request.offset % alignment == 0);
  CHECK(request.bytes > 0);
  CHECK(request.bytes % alignment == 0);
  CHECK(reinterpret_cast<uintptr_t>(request.target) % alignment == 0);
  ++outstanding_;
  {
    const std::lock_guard lock(mutex_);
    const auto [read, is_new] = reads_.try_emplace(request.tag);
    CHECK(is_new);
    read->second.request = request;
    read->second.segment_bytes = segment_bytes_of(request.bytes, options_.segment_bytes);
    line_of(read->second).push_back(request.tag);
  }
  has_segment_.notify_all();
}

std::deque<uint64_t>& ReadQueue::line_of(const Read& read) {
  return read.request.urgency == ReadUrgency::demand ? demand_ : look_ahead_;
}

void ReadQueue::promote(uint64_t tag) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = reads_.find(tag);
    if (found == reads_.end()) return;  // it has ended
    Read& read = found->second;
    if (read.request.urgency == ReadUrgency::demand) return;
    if (std::erase(look_ahead_, tag) > 0) demand_.push_back(tag);
    read.request.urgency = ReadUrgency::demand;
  }
  has_segment_.notify_all();  // look-ahead may have been at its limit
}

void ReadQueue::cancel(uint64_t tag) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = reads_.find(tag);
    if (found == reads_.end()) return;
    Read& read = found->second;
    read.is_cancelled = read.is_cancelled || read.begun_bytes < read.request.bytes;
    drop_rest(read);
    if (read.in_flight == 0) end_read(tag);
  }
  hand_over();
}

void ReadQueue::drop_rest(Read& read) {
  if (read.begun_bytes == read.request.bytes) return;
  std::erase(line_of(read), read.request.tag);
  read.begun_bytes = read.request.bytes;
}

std::optional<ReadCompletion> ReadQueue::wait_for(int64_t milliseconds) {
  CHECK(outstanding_ > 0);
  std::optional<ReadCompletion> completion = completions_.wait_for(milliseconds);
  outstanding_ -= completion ? 1 : 0;
  return completion;
}

std::optional<ReadCompletion> ReadQueue::poll() {
  std::optional<ReadCompletion> completion = completions_.poll();
  outstanding_ -= completion ? 1 : 0;
  return completion;
}

std::optional<PendingRead> ReadQueue::oldest_pending() const {
  const std::lock_guard lock(mutex_);
  if (in_flight_.empty()) return std::nullopt;
  const InFlight& oldest = in_flight_.front();
  return PendingRead{.path = files_[static_cast<size_t>(oldest.file)].path(),
                     .offset = oldest.begin,
                     .bytes = oldest.end - oldest.begin,
                     .begun_ns = oldest.begun_ns};
}

ReadCounters ReadQueue::counters() const {
  const std::lock_guard lock(mutex_);
  ReadCounters counters = counters_;
  if (!in_flight_.empty()) counters.busy_ns += SteadyClock().now_ns() - busy_since_ns_;
  return counters;
}

void ReadQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  has_segment_.notify_all();
}

bool ReadQueue::is_closed() const {
  const std::lock_guard lock(mutex_);
  return is_closed_;
}

bool ReadQueue::has_segment() const {
  return !demand_.empty() ||
         (!look_ahead_.empty() && look_ahead_in_flight_ < options_.look_ahead_in_flight_max);
}

std::optional<ReadSegment> ReadQueue::take() {
  std::unique_lock lock(mutex_);
  has_segment_.wait(lock, [this] { return is_closed_ || has_segment(); });
  return begin_segment();
}

std::optional<ReadSegment> ReadQueue::try_take() {
  const std::lock_guard lock(mutex_);
  return begin_segment();
}

std::optional<ReadSegment> ReadQueue::begin_segment() {
  if (is_closed_ || !has_segment()) return std::nullopt;
  std::deque<uint64_t>& line = demand_.empty() ? look_ahead_ : demand_;
  Read& read = reads_.at(line.front());
  const ReadRequest& request = read.request;
  const int64_t begin = read.begun_bytes;
  const int64_t bytes = std::min(read.segment_bytes, request.bytes - begin);
  read.begun_bytes += bytes;
  ++read.in_flight;
  if (read.begun_bytes == request.bytes) line.pop_front();
  const int64_t now_ns = SteadyClock().now_ns();
  if (in_flight_.empty()) busy_since_ns_ = now_ns;
  in_flight_.push_back({.tag = request.tag,
                        .file = request.file,
                        .begin = request.offset + begin,
                        .end = request.offset + begin + bytes,
                        .begun_ns = now_ns});
  const bool is_look_ahead = request.urgency == ReadUrgency::look_ahead;
  look_ahead_in_flight_ += is_look_ahead ? 1 : 0;
  return ReadSegment{.file = request.file,
                     .offset = request.offset + begin,
                     .bytes = bytes,
                     .target = request.target + begin,
                     .tag = request.tag,
                     .begin = request.offset + begin,
                     .end = request.offset + begin + bytes,
                     .got_to = request.offset + begin,
                     .is_look_ahead = is_look_ahead};
}

bool ReadQueue::advance(ReadSegment& segment, ssize_t result) {
  if (result == -EINTR || result == -EAGAIN) return true;
  if (result < 0) {
    end_segment(segment, Failure{segment.got_to, static_cast<int>(-result)});
    return false;
  }
  const int64_t got_to = segment.offset + result;
  if (got_to >= segment.end) {
    end_segment(segment, std::nullopt);
    return false;
  }
  if (got_to <= segment.got_to) {  // nothing new: the file ends here
    end_segment(segment, Failure{segment.got_to, 0});
    return false;
  }
  // A direct read has to go on at a multiple of the block: the block that came in part, again.
  segment.got_to = got_to;
  const int64_t next = got_to / alignment * alignment;
  segment.target += next - segment.offset;
  segment.offset = next;
  segment.bytes = segment.end - next;
  return true;
}

// Wakes no worker: the one that ends a segment takes the next itself.
void ReadQueue::end_segment(const ReadSegment& segment, std::optional<Failure> failure) {
  const std::lock_guard lock(mutex_);
  Read& read = reads_.at(segment.tag);
  --read.in_flight;
  look_ahead_in_flight_ -= segment.is_look_ahead ? 1 : 0;
  std::erase_if(in_flight_, [&](const InFlight& one) {
    return one.tag == segment.tag && one.begin == segment.begin;
  });
  if (in_flight_.empty()) counters_.busy_ns += SteadyClock().now_ns() - busy_since_ns_;
  if (failure) {
    if (!read.failure || failure->offset < read.failure->offset) read.failure = failure;
    drop_rest(read);
  } else {
    counters_.bytes += segment.end - segment.begin;
  }
  if (read.in_flight == 0 && read.begun_bytes == read.request.bytes) end_read(segment.tag);
}

void ReadQueue::end_read(uint64_t tag) {
  const Read read = std::move(reads_.extract(tag).mapped());
  Result<void> result = result_of(read);
  if (!result.ok() && result.error().kind != ErrorKind::cancelled) ++counters_.failures;
  ended_.push_back({read.request, std::move(result)});
}

void ReadQueue::hand_over() {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (Ended& one : ended) completions_.add(one.request, std::move(one.result));
}

Result<void> ReadQueue::result_of(const Read& read) const {
  const ReadRequest& request = read.request;
  const std::string& path = files_[static_cast<size_t>(request.file)].path();
  if (read.failure) {
    const int64_t got = read.failure->offset - request.offset;
    return error(read.failure->error_number == 0 ? ErrorKind::bad_input : ErrorKind::io,
                 "{}: read at {}: wanted {} bytes, got {}: {}", path, request.offset, request.bytes,
                 got,
                 read.failure->error_number == 0 ? "the file is short"
                                                 : std::strerror(read.failure->error_number));
  }
  if (read.is_cancelled) {
    return error(ErrorKind::cancelled, "{}: read of {} bytes at {}: cancelled", path, request.bytes,
                 request.offset);
  }
  return {};
}

}  // namespace glmd
