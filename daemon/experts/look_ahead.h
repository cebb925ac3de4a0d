// Reading ahead of the router: which experts the next layer is likely to want, and whether reading
// them pays on this machine. Where the disk is never idle it cannot, so that is measured. Pure.
#pragma once

#include <array>
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
// faster for a while, then tries again: both sides see the same text and the same cache. How many
// experts a pass has to read moves its time far more than looking ahead does, so passes are
// compared as if all had read the same number: the seconds that one more read costs are the median
// slope between passes of the same side (Theil, Sen), which takes no notice of a pass that was
// disturbed.
class LookAheadSwitch {
 public:
  static constexpr int64_t trial_passes = 32;
  static constexpr int64_t verdict_passes = 480;
  static constexpr double gain_min = 1.01;  // what pays: reads for nothing wear the disk

  explicit LookAheadSwitch(LookAhead mode);

  bool is_on() const;
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
  int64_t pass_ = 0;  // since the trial began
  bool verdict_ = true;
  std::array<std::vector<Pass>, 2> trial_;  // without, with
};

}  // namespace glmd
