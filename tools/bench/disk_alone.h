// The disk of a streaming run, alone: the reads that a cache would need, by a reader of the same
// kind, with nothing else going on. Targets are huge pages that were touched before, like the slots
// of an arena that has been filled once: a disk that writes into small pages is less than half as
// fast, one that meets new pages slower too.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "platform/aligned_memory.h"
#include "storage/reader_choice.h"
#include "stream_slice.h"

namespace glmd {

constexpr int64_t reads_under_way = 16;  // experts: more segments than a reader begins

struct MissOptions {
  int64_t arena_bytes = 0;
  bool looks_ahead = false;  // some slots are kept for that
  int64_t warm_up = 0, tokens = 0;
};

// What a cache of that size reads for the measured tokens: [tokens x layers][experts]. What is
// wanted, where it reads nothing: the disk alone is measured all the same.
using Misses = std::vector<std::vector<const Tensor*>>;
Result<Misses> misses_of(const Slice& slice, const RoutingTable& routing,
                         const MissOptions& options);

class DiskAlone {
 public:
  static Result<DiskAlone> open(const Container& container, const Slice& slice, ReaderKind reader,
                                Misses misses);

  // Bytes a second with always enough reads under way, for so long.
  Result<double> rate(double seconds_max);
  // The same, each layer's reads waited for before the next are begun.
  Result<double> serial_rate(double seconds_max);
  // As rate(), until `is_done`.
  Result<double> rate_until(const std::atomic<bool>& is_done);

 private:
  DiskAlone(Misses misses, int64_t expert_bytes, AlignedMemory targets, OpenedReader opened);
  Result<double> measure(bool waits_for_layers, const std::function<bool(double seconds)>& goes_on);
  Result<void> finish_one();
  Result<void> finish_all();

  Misses misses_;
  size_t next_ = 0;
  int64_t expert_bytes_ = 0;
  AlignedMemory targets_;
  OpenedReader opened_;        // ends before its targets do
  std::vector<int64_t> free_;  // places of these
};

}  // namespace glmd
