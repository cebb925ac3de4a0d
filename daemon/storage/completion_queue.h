// Where reads end: completions on their way to the compute thread. A read that is to be checked
// goes by way of a thread of this queue: hashing an expert takes longer than computing it, which
// neither the compute thread nor those that keep the disk busy have time for.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "storage/block_reader.h"

namespace glmd {

// Wakes a compute thread that waits for several readers at once.
class ReadSignal {
 public:
  void raise();
  // Returns once it was raised after the last wait, or so much later.
  void wait_for(int64_t milliseconds);

 private:
  std::mutex mutex_;
  std::condition_variable has_changed_;
  bool is_raised_ = false;
};

// What a read is whose bytes are all there: as wanted, or `corrupt`, naming file, offset, wanted
// and got. Thread: any.
Result<void> compare_checksum(const ReadRequest& request);

class CompletionQueue {
 public:
  explicit CompletionQueue(ReadSignal* signal) : signal_(signal) {}
  // Waits for the check that runs; others are dropped.
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Thread: any. The read ended so; a good one with a checksum is checked before it is handed over.
  void add(const ReadRequest& request, Result<void> result);

  // Thread: compute.
  std::optional<ReadCompletion> wait_for(int64_t milliseconds);
  std::optional<ReadCompletion> poll();

 private:
  bool hand_to_checker(const ReadRequest& request);
  void check_reads();
  void hand_over(ReadCompletion completion);
  ReadCompletion take();

  ReadSignal* signal_;  // raised with each completion; may be none
  std::mutex mutex_;    // guards what follows
  std::condition_variable has_completion_, has_check_;
  std::deque<ReadCompletion> completions_;
  std::deque<ReadRequest> checks_;
  bool is_closed_ = false;
  std::thread checker_;  // from the first check on
};

}  // namespace glmd
