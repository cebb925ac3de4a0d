#include "storage/thread_reader.h"

namespace glmd {

Result<std::unique_ptr<BlockReader>> ThreadReader::open(const std::vector<std::string>& paths,
                                                        int thread_count) {
  std::unique_ptr<ThreadReader> reader(new ThreadReader);
  for (const std::string& path : paths) reader->files_.push_back(TRY(File::open_direct(path)));
  for (int i = 0; i < thread_count; ++i) {
    reader->threads_.emplace_back([self = reader.get()] { self->work(); });
  }
  return std::unique_ptr<BlockReader>(std::move(reader));
}

ThreadReader::~ThreadReader() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    requests_.clear();
  }
  has_requests_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadReader::submit(const ReadRequest& request) {
  ++outstanding_;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  has_requests_.notify_one();
}

ReadCompletion ThreadReader::wait() {
  CHECK(outstanding_ > 0);
  --outstanding_;
  std::unique_lock lock(mutex_);
  has_completions_.wait(lock, [&] { return !completions_.empty(); });
  ReadCompletion completion = std::move(completions_.front());
  completions_.pop_front();
  return completion;
}

void ThreadReader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_requests_.wait(lock, [&] { return is_stopping_ || !requests_.empty(); });
    if (is_stopping_) return;
    const ReadRequest request = requests_.front();
    requests_.pop_front();
    lock.unlock();
    Result<void> result = files_[request.file].read_at(
        request.offset, {request.target, static_cast<size_t>(request.bytes)});
    lock.lock();
    completions_.push_back({request.tag, std::move(result)});
    has_completions_.notify_one();
  }
}

}  // namespace glmd
