// What every block reader keeps: requests cut into segments, demand before look-ahead, segments
// under way, completions. The compute thread fills it and takes completions out; the workers of a
// reader (threads, or one with a ring) take segments and say what became of them.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "platform/file.h"
#include "storage/block_reader.h"
#include "storage/completion_queue.h"

namespace glmd {

struct ReadQueueOptions {
  // A request is cut into equal segments of at most so much: large enough that the disk's cost of a
  // read is small, small enough that demand soon comes through.
  int64_t segment_bytes = int64_t{2} << 20;
  // Segments of look-ahead under way: what demand may have to wait for. Few, as long as the disk
  // stays busy.
  int look_ahead_in_flight_max = 2;
  ReadSignal* signal = nullptr;  // raised with each completion
};

// A part of a request that one worker reads with one call, or several where they come back short.
struct ReadSegment {
  int32_t file = 0;
  int64_t offset = 0;  // what is left of it
  int64_t bytes = 0;
  uint8_t* target = nullptr;

  uint64_t tag = 0;
  int64_t begin = 0, end = 0;  // of the whole, in the file
  int64_t got_to = 0;          // bytes have come up to here
  bool is_look_ahead = false;  // when it began
};

class ReadQueue {
 public:
  static constexpr int64_t alignment = 4096;

  ReadQueue(std::vector<File> files, const ReadQueueOptions& options);

  const std::vector<File>& files() const { return files_; }  // Thread: any

  // Thread: compute. As in BlockReader.
  void submit(const ReadRequest& request);
  void promote(uint64_t tag);
  void cancel(uint64_t tag);
  std::optional<ReadCompletion> wait_for(int64_t milliseconds);
  std::optional<ReadCompletion> poll();
  int64_t outstanding() const { return outstanding_; }
  std::optional<PendingRead> oldest_pending() const;
  ReadCounters counters() const;
  // Nothing more begins; take() ends with nothing.
  void close();

  // Thread: the workers'. The next segment to read: waits for one; nothing after close().
  std::optional<ReadSegment> take();
  // The same without waiting. Every segment taken is brought to its end by advance().
  std::optional<ReadSegment> try_take();
  bool is_closed() const;
  // What a read of the segment returned: bytes, or the negative error number. True where there is
  // more to read: the segment says what. A read that has ended by it waits for hand_over().
  bool advance(ReadSegment& segment, ssize_t result);
  // Gives the compute thread what has ended. A worker begins its next segments before: the thread
  // that this wakes may take its processor, and the disk would stand still.
  void hand_over();

 private:
  // Of a request, the failure at the lowest offset is told: all before it has come.
  struct Failure {
    int64_t offset = 0;
    int error_number = 0;  // 0: the file ends here
  };
  struct InFlight {
    uint64_t tag = 0;
    int32_t file = 0;
    int64_t begin = 0, end = 0;
    int64_t begun_ns = 0;
  };
  struct Read {
    ReadRequest request;
    int64_t segment_bytes = 0;
    int64_t begun_bytes = 0;
    int in_flight = 0;
    bool is_cancelled = false;
    std::optional<Failure> failure;
  };

  struct Ended {
    ReadRequest request;
    Result<void> result;
  };

  std::optional<ReadSegment> begin_segment();
  bool has_segment() const;
  std::deque<uint64_t>& line_of(const Read& read);
  void drop_rest(Read& read);
  void end_segment(const ReadSegment& segment, std::optional<Failure> failure);
  void end_read(uint64_t tag);
  Result<void> result_of(const Read& read) const;

  const std::vector<File> files_;
  const ReadQueueOptions options_;
  int64_t outstanding_ = 0;  // compute thread only
  CompletionQueue completions_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable has_segment_;
  std::unordered_map<uint64_t, Read> reads_;  // that have not ended
  std::deque<uint64_t> demand_, look_ahead_;  // not wholly begun
  std::vector<Ended> ended_;                  // not handed over yet
  std::vector<InFlight> in_flight_;           // segments, in the order in which they began
  int look_ahead_in_flight_ = 0;
  ReadCounters counters_;
  int64_t busy_since_ns_ = 0;  // while any is in flight
  bool is_closed_ = false;
};

}  // namespace glmd
