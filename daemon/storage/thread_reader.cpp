#include "storage/thread_reader.h"

#include <utility>

namespace glmd {

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
    requests_.push_back(request);
  }
  has_request_.notify_one();
}

ReadCompletion ThreadReader::wait() {
  CHECK(outstanding_ > 0);
  std::unique_lock lock(mutex_);
  has_completion_.wait(lock, [this] { return !completions_.empty(); });
  ReadCompletion completion = std::move(completions_.front());
  completions_.pop_front();
  --outstanding_;
  return completion;
}

void ThreadReader::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_request_.wait(lock, [this] { return is_closing_ || !requests_.empty(); });
    if (is_closing_) return;
    const ReadRequest request = requests_.front();
    requests_.pop_front();
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
