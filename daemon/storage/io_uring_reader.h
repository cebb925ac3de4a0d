// The block reader at the disk's limit: one thread keeps a ring full of direct reads and sleeps
// while the disk works. A thread, because the disk must not wait until the compute thread has time
// for it; one, because many would take cores from the team. Thread: the interface is the compute
// thread's; the ring is the inner thread's.
#pragma once

#include <liburing.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "platform/file.h"
#include "storage/block_reader.h"
#include "storage/read_queue.h"

namespace glmd {

class IoUringReader : public BlockReader {
 public:
  // Whether a reader can be had and reads: fails with `unavailable` where the kernel has no
  // io_uring or forbids a part of it, with `no_memory` where a limit leaves no room for the ring.
  // So do open() and start().
  static Result<void> probe();
  static Result<std::unique_ptr<IoUringReader>> open(const std::vector<std::string>& paths,
                                                     int in_flight_max,
                                                     const ReadQueueOptions& options = {});
  static Result<std::unique_ptr<IoUringReader>> start(std::vector<File> files, int in_flight_max,
                                                      const ReadQueueOptions& options);
  // Waits for segments that are under way; those not begun are dropped.
  ~IoUringReader() override;
  IoUringReader(const IoUringReader&) = delete;
  IoUringReader& operator=(const IoUringReader&) = delete;

  void submit(const ReadRequest& request) override;
  void promote(uint64_t tag) override;
  void cancel(uint64_t tag) override { queue_.cancel(tag); }
  std::optional<ReadCompletion> wait_for(int64_t milliseconds) override {
    return queue_.wait_for(milliseconds);
  }
  std::optional<ReadCompletion> poll() override { return queue_.poll(); }
  int64_t outstanding() const override { return queue_.outstanding(); }
  std::optional<PendingRead> oldest_pending() const override { return queue_.oldest_pending(); }
  ReadCounters counters() const override { return queue_.counters(); }

 private:
  IoUringReader(std::vector<File> files, File wake_up, int in_flight_max,
                const ReadQueueOptions& options);
  Result<void> set_up();
  Result<void> try_out();
  void wake();
  void serve();
  void submit_and_wait(unsigned completions);
  void begin_segments();
  void prepare(size_t slot);
  void prepare_wake_up();
  void reap();

  ReadQueue queue_;
  File wake_up_;  // an eventfd that the ring reads
  std::thread thread_;

  // The inner thread's.
  io_uring ring_{};
  bool has_ring_ = false;
  std::vector<ReadSegment> slots_;  // segments in the ring, by the user data of their reads
  std::vector<size_t> free_slots_;
  uint64_t wake_up_count_ = 0;  // target of the eventfd's read
};

}  // namespace glmd
