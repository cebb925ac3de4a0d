#include "generation/pass_speed.h"

#include <algorithm>
#include <cmath>

#include "experts/least_time.h"

namespace glmd {

void BestReadRate::add(int64_t reads, int64_t bytes, double busy_seconds) {
  reads_ += reads;
  bytes_ += bytes;
  busy_seconds_ += busy_seconds;
  if (reads_ < window_reads || busy_seconds_ < window_seconds) return;
  const double rate = static_cast<double>(bytes_) / busy_seconds_;
  const double lead = std::max(0.0, best_ - rate);
  best_ = rate + lead * std::exp2(-busy_seconds_ / half_life_seconds);
  reads_ = bytes_ = 0;
  busy_seconds_ = 0;
}

double BestReadRate::bytes_per_s() const {
  if (best_ > 0) return best_;
  return busy_seconds_ > 0 ? static_cast<double>(bytes_) / busy_seconds_ : 0;
}

void PassSpeed::add(double seconds, double head_seconds, const ExpertCacheStats& before,
                    const ExpertCacheStats& after) {
  const int64_t needed = after.needed_reads() - before.needed_reads();
  const int64_t wasted = after.ahead_wasted - before.ahead_wasted;
  const int64_t bytes = after.read_bytes - before.read_bytes;
  const double busy_seconds = after.read_seconds - before.read_seconds;
  seconds_ += seconds;
  busy_seconds_ += busy_seconds;
  arithmetic_seconds_ += seconds - (after.wait_seconds - before.wait_seconds);
  head_seconds_ += head_seconds;
  read_bytes_ += bytes;
  needed_reads_ += needed;
  wasted_reads_ += wasted;
  rate_.add(needed + wasted, bytes, busy_seconds);
}

// Guesses that were read for nothing are no part of what had to be.
double PassSpeed::needed_bytes() const {
  const int64_t reads = needed_reads_ + wasted_reads_;
  if (reads == 0) return 0;
  return static_cast<double>(read_bytes_) * static_cast<double>(needed_reads_) /
         static_cast<double>(reads);
}

double PassSpeed::least_seconds() const {
  const double rate = rate_.bytes_per_s();
  const double disk_seconds = rate > 0 ? needed_bytes() / rate : 0;
  return least_time(disk_seconds, arithmetic_seconds_, head_seconds_);
}

Json PassSpeed::to_json() const {
  return Json::object({
      {"pass_seconds", Json::real(seconds_)},
      {"disk_seconds", Json::real(busy_seconds_)},
      {"arithmetic_seconds", Json::real(arithmetic_seconds_)},
      {"head_seconds", Json::real(head_seconds_)},
      {"needed_bytes", Json::integer(std::llround(needed_bytes()))},
      {"best_read_bytes_per_s", Json::real(rate_.bytes_per_s())},
      {"achieved_of_bound", Json::real(std::min(1.0, least_seconds() / seconds_))},
  });
}

}  // namespace glmd
