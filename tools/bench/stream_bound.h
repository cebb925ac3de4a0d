// What a streaming run is held against: the disk and the arithmetic, each alone, and the output
// head that hides no reads (experts/least_time.h); beside it, what both reach at once where they
// have nothing to wait for from each other, since a machine may not have the two independent (a
// virtual disk takes processors, both take memory). The speed of a shared machine drifts, so both
// are measured in short slices before and after every piece of the run, and a piece is held to the
// better of its two neighbours. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/least_time.h"

namespace glmd {

// A piece of the run.
struct StreamPiece {
  int64_t tokens = 0;
  double seconds = 0;       // of all its tokens
  double needed_bytes = 0;  // that had to be read, by whomever
};

// One look at what each can do alone.
struct AloneSlice {
  double disk_bytes_per_s = 0;    // always enough reads under way
  double serial_bytes_per_s = 1;  // layer after layer, each waited for; 1: not measured
  double compute_seconds = 0;     // of a token, every expert in memory
  double head_seconds = 0;        // of these, the output head
  // Both at once.
  double together_disk_bytes_per_s = 0;
  double together_compute_seconds = 0;
};

struct StreamBound {
  double seconds = 0;           // the run
  double disk_seconds = 0;      // its reads alone
  double compute_seconds = 0;   // its arithmetic alone, and of this
  double head_seconds = 0;      // the output head
  double serial_seconds = 0;    // each layer's reads, then its arithmetic
  double together_seconds = 0;  // both at once until one is done, then the other alone
  double least_seconds() const { return least_time(disk_seconds, compute_seconds, head_seconds); }
  double share() const { return least_seconds() / seconds; }
  double over_serial() const { return serial_seconds / seconds; }
};

// The time for `bytes` and `tokens` where both run at once for as long as both have work, after the
// heads.
double together_seconds(const AloneSlice& slice, double bytes, double tokens);

// `slices` has one more than `pieces`: slice i lies before piece i, slice i + 1 after it.
StreamBound bound_of(std::span<const StreamPiece> pieces, std::span<const AloneSlice> slices);

}  // namespace glmd
