// Reading ahead of the router: which experts the next layer is likely to want, and whether reading
// them pays on this machine. Where the disk is never idle it cannot, so that is measured. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace glmd {

enum class LookAhead { off, on, automatic };

std::optional<LookAhead> look_ahead_from(std::string_view name);  // on, off, auto

// An expert that a row is thought to choose, and how likely: `chosen` for the row's best, 1 for its
// last.
struct Guess {
  int32_t expert = 0;
  int64_t confidence = 0;
};
// Each expert once, with the confidence of all rows: the highest first, ties by lower id.
void rank_guesses(std::vector<Guess>& guesses);

// On or off for the next pass. `automatic` runs passes alternately with and without, keeps what was
// faster for a while, then tries again. How many experts a pass has to read, and how fast the
// machine is just then, move its time far more than looking ahead does: so each pass is compared
// with the next, less what the difference of their reads costs, and medians count.
class LookAheadSwitch {
 public:
  static constexpr int64_t trial_passes = 32;
  static constexpr int64_t verdict_passes = 480;
  static constexpr double gain_min = 1.01;  // what pays: reads for nothing wear the disk

  explicit LookAheadSwitch(LookAhead mode);

  bool is_on() const;
  // "on", "off", or "trying" both; for status.
  std::string_view state() const;
  // A pass ended that took `seconds` and needed `reads` experts that were not in memory, whether
  // the router or a guess had them read.
  void add_pass(double seconds, int64_t reads);

 private:
  struct Pass {
    double seconds = 0, reads = 0;
  };
  bool pays() const;
  double seconds_per_read() const;

  LookAhead mode_;
  int64_t passes_left_ = 0;  // of the verdict
  bool verdict_ = true;
  std::vector<Pass> trial_;  // with looking ahead, without, and so on
};

}  // namespace glmd
