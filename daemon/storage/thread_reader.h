// A BlockReader of blocking reads on a few threads: works on every file system; direct where it can
// be.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "platform/file.h"
#include "storage/block_reader.h"

namespace glmd {

class ThreadReader : public BlockReader {
 public:
  static Result<std::unique_ptr<BlockReader>> open(const std::vector<std::string>& paths,
                                                   int thread_count);
  ~ThreadReader() override;

  void submit(const ReadRequest& request) override;
  ReadCompletion wait() override;
  int64_t outstanding() const override { return outstanding_; }

 private:
  ThreadReader() = default;
  void work();

  std::vector<File> files_;
  int64_t outstanding_ = 0;  // compute thread only
  std::mutex mutex_;
  std::condition_variable has_requests_, has_completions_;
  std::deque<ReadRequest> requests_;
  std::deque<ReadCompletion> completions_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace glmd
