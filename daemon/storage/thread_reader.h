// The block reader for every machine: threads that pread. Thread: the interface is the compute
// thread's; the readers are inside.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "platform/file.h"
#include "storage/block_reader.h"
#include "storage/read_queue.h"

namespace glmd {

class ThreadReader : public BlockReader {
 public:
  // Direct reads where the file system has them.
  static Result<std::unique_ptr<ThreadReader>> open(const std::vector<std::string>& paths,
                                                    int thread_count,
                                                    const ReadQueueOptions& options = {});
  ThreadReader(std::vector<File> files, int thread_count, const ReadQueueOptions& options);
  // Waits for segments that are under way; those not begun are dropped.
  ~ThreadReader() override = default;
  ThreadReader(const ThreadReader&) = delete;
  ThreadReader& operator=(const ThreadReader&) = delete;

  void submit(const ReadRequest& request) override { queue_.submit(request); }
  void promote(uint64_t tag) override { queue_.promote(tag); }
  void cancel(uint64_t tag) override { queue_.cancel(tag); }
  std::optional<ReadCompletion> wait_for(int64_t milliseconds) override {
    return queue_.wait_for(milliseconds);
  }
  std::optional<ReadCompletion> poll() override { return queue_.poll(); }
  int64_t outstanding() const override { return queue_.outstanding(); }
  std::optional<PendingRead> oldest_pending() const override { return queue_.oldest_pending(); }
  ReadCounters counters() const override { return queue_.counters(); }

 private:
  void serve();

  // Ends them all, also where the next one could not be made.
  struct Threads {
    ReadQueue& queue;
    std::vector<std::thread> threads = {};
    ~Threads();
  };

  ReadQueue queue_;
  Threads threads_{queue_};
};

}  // namespace glmd
