// The block reader for every machine: threads that pread with O_DIRECT. Completions come in the
// order in which reads end. Thread: submit, wait and outstanding are the compute thread's; the
// readers are inside.
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
  static Result<std::unique_ptr<ThreadReader>> open(std::vector<std::string> paths,
                                                    int thread_count);
  // Waits for reads that are under way; those not begun are dropped.
  ~ThreadReader() override;
  ThreadReader(const ThreadReader&) = delete;
  ThreadReader& operator=(const ThreadReader&) = delete;

  void submit(const ReadRequest& request) override;
  void promote(uint64_t tag) override;
  void cancel(uint64_t tag) override;
  ReadCompletion wait() override;
  std::optional<ReadCompletion> poll() override;
  int64_t outstanding() const override { return outstanding_; }

 private:
  explicit ThreadReader(std::vector<File> files);
  void start(int thread_count);
  void serve();
  ReadCompletion take_completion();
  Result<void> read(const ReadRequest& request) const;

  const std::vector<File> files_;
  int64_t outstanding_ = 0;  // compute thread only

  std::mutex mutex_;  // guards what follows
  std::condition_variable has_request_, has_completion_;
  std::deque<ReadRequest> demand_, look_ahead_;  // not begun
  std::deque<ReadCompletion> completions_;
  bool is_closing_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace glmd
