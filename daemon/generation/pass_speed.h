// How fast passes ran against what bounds them: the bytes that had to be read at the best rate that
// the disk was seen to give, and the time that arithmetic took (experts/least_time.h). A read that
// is slow, or waits for others, so counts against us; a processor that others slow down does not,
// since no unit of arithmetic takes the same time in passes of one row and of many. Pure.
#pragma once

#include <cstdint>

#include "experts/expert_cache.h"
#include "platform/json.h"

namespace glmd {

// The best rate that reads were seen to have. Bytes are counted when reads end, which they may do
// many at once: so a window ends after so many reads and so long a time of reading that a few more
// or less at its ends matter little. What was best once loses half of its lead over what is now in
// ten minutes of reading, so that a disk that others use as well is not held to its past for ever.
class BestReadRate {
 public:
  static constexpr int64_t window_reads = 256;
  static constexpr double window_seconds = 0.1;
  static constexpr double half_life_seconds = 600;

  void add(int64_t reads, int64_t bytes, double busy_seconds);
  // Until the first window ends, that of all reads so far; 0: none.
  double bytes_per_s() const;

 private:
  int64_t reads_ = 0, bytes_ = 0;  // of this window
  double busy_seconds_ = 0;        // with a read under way, likewise
  double best_ = 0;
};

class PassSpeed {
 public:
  // Passes ran for so long, of which output heads so much; counters from before and after.
  void add(double seconds, double head_seconds, const ExpertCacheStats& before,
           const ExpertCacheStats& after);
  bool has_passes() const { return seconds_ > 0; }
  Json to_json() const;

 private:
  double needed_bytes() const;
  double least_seconds() const;

  double seconds_ = 0, busy_seconds_ = 0, arithmetic_seconds_ = 0, head_seconds_ = 0;
  int64_t read_bytes_ = 0, needed_reads_ = 0, wasted_reads_ = 0;
  BestReadRate rate_;
};

}  // namespace glmd
