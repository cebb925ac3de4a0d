// Reads of expert bytes: submitted by the compute thread, done by others, handed over here and
// nowhere else. Thread: all members are the compute thread's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/result.h"

namespace glmd {

// What the bytes of a read hash to (XXH3-64).
struct ReadChecksum {
  uint64_t hash = 0;
  std::string_view file_name;  // for messages; outlives the read
};

// Demand goes first: a reader begins no look-ahead read, and no further segment of one, while
// demand waits.
enum class ReadUrgency { demand, look_ahead };

struct ReadRequest {
  int32_t file = 0;    // index the reader was made with
  int64_t offset = 0;  // multiples of 4096: one direct read
  int64_t bytes = 0;
  uint8_t* target = nullptr;  // 4096-aligned, stays valid until the completion
  uint64_t tag = 0;           // given back; unique among outstanding reads
  ReadUrgency urgency = ReadUrgency::demand;
  bool is_reread = false;  // the last read gave wrong bytes: from any disk that has them right
  std::optional<ReadChecksum> checksum = {};  // compared, by another thread than the caller's
};

struct ReadCompletion {
  uint64_t tag = 0;
  // Names file, offset, wanted and got; `cancelled` after cancel(), `corrupt` by the checksum.
  Result<void> result;
};

struct ReadCounters {
  int64_t bytes = 0;    // that came, also for reads that failed or were cancelled
  int64_t busy_ns = 0;  // with at least one read under way
  // Reads that failed, not those cancelled. With wrong bytes: only copies that one of several disks
  // was found to have wrong.
  int64_t failures = 0;
};

// What a disk was asked for and has not answered.
struct PendingRead {
  std::string path;
  int64_t offset = 0, bytes = 0;
  int64_t begun_ns = 0;  // of the steady clock

  bool operator==(const PendingRead&) const = default;
  // A disk in order answers within a second: before a segment of 2 MiB are 15 others, 0.3 s at
  // 100 MB/s. Kernels give a disk up after 30 s and more, and a server mounted hard never.
  static constexpr int64_t hanging_ms = 5'000;
  bool hangs(int64_t now_ns) const { return now_ns - begun_ns >= hanging_ms * 1'000'000; }
  int64_t seconds(int64_t now_ns) const { return (now_ns - begun_ns) / 1'000'000'000; }
};

// One of the disks that are read; for status.
struct DiskStatus {
  std::string name;
  ReadCounters counters;
  double bytes_per_second = 0;  // a running estimate; 0: not measured yet
  bool is_in_use = false;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;
  virtual void submit(const ReadRequest& request) = 0;
  // A look-ahead read that is wanted now: what is left of it is read as demand.
  virtual void promote(uint64_t tag) = 0;
  // Of no use any more: what has not begun is dropped. The completion comes all the same, whole or
  // `cancelled`; until then the target is not free.
  virtual void cancel(uint64_t tag) = 0;
  // The next completion, waiting for it for so long at most. Only while one is outstanding.
  virtual std::optional<ReadCompletion> wait_for(int64_t milliseconds) = 0;
  ReadCompletion wait();  // for as long as it takes
  // The next completion if there is one now.
  virtual std::optional<ReadCompletion> poll() = 0;
  virtual int64_t outstanding() const = 0;
  // Of what disks were asked for, that which was first.
  virtual std::optional<PendingRead> oldest_pending() const { return std::nullopt; }
  // Reads that hang on one of several disks and would come from another if they were submitted once
  // more, with a target and a tag of their own: into the first target the disk may write yet.
  virtual std::vector<uint64_t> stranded() const { return {}; }
  virtual ReadCounters counters() const { return {}; }
  // What happened to disks since the last call, each a line for the log.
  virtual std::vector<std::string> take_events() { return {}; }
  virtual std::vector<DiskStatus> disks() const { return {}; }
};

inline ReadCompletion BlockReader::wait() {
  std::optional<ReadCompletion> completion;
  while (!completion) completion = wait_for(60'000);
  return std::move(*completion);
}

}  // namespace glmd
