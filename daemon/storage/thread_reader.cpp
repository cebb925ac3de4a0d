#include "storage/thread_reader.h"

#include <algorithm>
#include <utility>

namespace glmd {
namespace {

std::deque<ReadRequest>::iterator find_tag(std::deque<ReadRequest>& requests, uint64_t tag) {
  return std::find_if(requests.begin(), requests.end(),
                      [tag](const ReadRequest& request) { return request.tag == tag; });
}

}  // namespace

Result<std::unique_ptr<ThreadReader>> ThreadReader::open(std::vector<std::string> paths,
                                                         int thread_count) {
  CHECK(thread_count >= 1);
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back(TRY(File::open_direct(path)));
  std::unique_ptr<ThreadReader> reader(new ThreadReader(std::move(files)));
  reader->start(thread_count);
  return reader;
}

ThreadReader::ThreadReader(std::vector<File> files) : files_(std::move(files)) {}

void ThreadReader::start(int thread_count) {
  for (int i = 0; i < thread_count; ++i) threads_.emplace_back([this] { serve(); });
}

ThreadReader::~ThreadReader() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  has_request_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadReader::submit(const ReadRequest& request) {
  CHECK(request.file >= 0);
  CHECK(request.file < static_cast<int64_t>(files_.size()));
  CHECK(request.offset >= 0);
  CHECK(request.bytes >= 0);
  ++outstanding_;
  {
    const std::lock_guard lock(mutex_);
    (request.urgency == ReadUrgency::demand ? demand_ : look_ahead_).push_back(request);
  }
  has_request_.notify_one();
}

void ThreadReader::promote(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto request = find_tag(look_ahead_, tag);
  if (request == look_ahead_.end()) return;
  demand_.push_back(*request);
  look_ahead_.erase(request);
}

void ThreadReader::cancel(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  for (std::deque<ReadRequest>* requests : {&demand_, &look_ahead_}) {
    const auto request = find_tag(*requests, tag);
    if (request == requests->end()) continue;
    requests->erase(request);
    completions_.push_back({.tag = tag, .result = error(ErrorKind::cancelled, "read cancelled")});
  }
}

ReadCompletion ThreadReader::wait() {
  CHECK(outstanding_ > 0);
  std::unique_lock lock(mutex_);
  has_completion_.wait(lock, [this] { return !completions_.empty(); });
  return take_completion();
}

std::optional<ReadCompletion> ThreadReader::poll() {
  const std::lock_guard lock(mutex_);
  if (completions_.empty()) return std::nullopt;
  return take_completion();
}

ReadCompletion ThreadReader::take_completion() {
  ReadCompletion completion = std::move(completions_.front());
  completions_.pop_front();
  --outstanding_;
  return completion;
}

void ThreadReader::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_request_.wait(lock,
                      [this] { return is_closing_ || !demand_.empty() || !look_ahead_.empty(); });
    if (is_closing_) return;
    std::deque<ReadRequest>& requests = demand_.empty() ? look_ahead_ : demand_;
    const ReadRequest request = requests.front();
    requests.pop_front();
    lock.unlock();
    Result<void> result = read(request);
    lock.lock();
    completions_.push_back({.tag = request.tag, .result = std::move(result)});
    has_completion_.notify_one();
  }
}

Result<void> ThreadReader::read(const ReadRequest& request) const {
  const File& file = files_[static_cast<size_t>(request.file)];
  return file.read_at(request.offset, {request.target, static_cast<size_t>(request.bytes)});
}

}  // namespace glmd
