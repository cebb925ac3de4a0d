#include "storage/completion_queue.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "storage/manifest.h"

namespace glmd {

void ReadSignal::raise() {
  {
    const std::lock_guard lock(mutex_);
    is_raised_ = true;
  }
  has_changed_.notify_one();
}

void ReadSignal::wait_for(int64_t milliseconds) {
  std::unique_lock lock(mutex_);
  has_changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                        [this] { return is_raised_; });
  is_raised_ = false;
}

Result<void> compare_checksum(const ReadRequest& request) {
  const ReadChecksum& wanted = *request.checksum;
  const uint64_t got = hash_bytes({request.target, static_cast<size_t>(request.bytes)});
  if (got == wanted.hash) return {};
  return error(ErrorKind::corrupt, "{}: checksum of {} bytes at {}: wanted {:016x}, got {:016x}",
               wanted.file_name, request.bytes, request.offset, wanted.hash, got);
}

CompletionQueue::~CompletionQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  has_check_.notify_one();
  if (checker_.joinable()) checker_.join();
}

void CompletionQueue::add(const ReadRequest& request, Result<void> result) {
  if (!request.checksum || !result.ok()) {
    hand_over({.tag = request.tag, .result = std::move(result)});
    return;
  }
  if (!hand_to_checker(request)) {
    hand_over({.tag = request.tag, .result = compare_checksum(request)});
  }
}

// False where there is no room for its thread.
bool CompletionQueue::hand_to_checker(const ReadRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    try {
      if (!checker_.joinable()) checker_ = std::thread([this] { check_reads(); });
    } catch (const std::system_error&) {
      return false;
    }
    checks_.push_back(request);
  }
  has_check_.notify_one();
  return true;
}

void CompletionQueue::check_reads() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_check_.wait(lock, [this] { return is_closed_ || !checks_.empty(); });
    if (is_closed_) return;
    const ReadRequest request = checks_.front();
    checks_.pop_front();
    lock.unlock();
    hand_over({.tag = request.tag, .result = compare_checksum(request)});
    lock.lock();
  }
}

void CompletionQueue::hand_over(ReadCompletion completion) {
  {
    const std::lock_guard lock(mutex_);
    completions_.push_back(std::move(completion));
  }
  has_completion_.notify_one();
  if (signal_ != nullptr) signal_->raise();
}

std::optional<ReadCompletion> CompletionQueue::wait_for(int64_t milliseconds) {
  std::unique_lock lock(mutex_);
  const bool has_one = has_completion_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                                                [this] { return !completions_.empty(); });
  if (!has_one) return std::nullopt;
  return take();
}

std::optional<ReadCompletion> CompletionQueue::poll() {
  const std::lock_guard lock(mutex_);
  if (completions_.empty()) return std::nullopt;
  return take();
}

ReadCompletion CompletionQueue::take() {
  ReadCompletion completion = std::move(completions_.front());
  completions_.pop_front();
  return completion;
}

}  // namespace glmd
