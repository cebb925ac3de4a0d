#include "experts/look_ahead.h"

#include <algorithm>

namespace glmd {

std::optional<LookAhead> look_ahead_from(std::string_view name) {
  if (name == "on") return LookAhead::on;
  if (name == "off") return LookAhead::off;
  if (name == "auto") return LookAhead::automatic;
  return std::nullopt;
}

void rank_guesses(std::vector<Guess>& guesses) {
  std::sort(guesses.begin(), guesses.end(),
            [](const Guess& a, const Guess& b) { return a.expert < b.expert; });
  size_t count = 0;
  for (const Guess& guess : guesses) {
    if (count > 0 && guesses[count - 1].expert == guess.expert) {
      guesses[count - 1].confidence += guess.confidence;
    } else {
      guesses[count++] = guess;
    }
  }
  guesses.resize(count);
  std::sort(guesses.begin(), guesses.end(), [](const Guess& a, const Guess& b) {
    return a.confidence != b.confidence ? a.confidence > b.confidence : a.expert < b.expert;
  });
}

LookAheadSwitch::LookAheadSwitch(LookAhead mode) : mode_(mode) {
  for (std::vector<Pass>& side : trial_) side.reserve(trial_passes);
}

bool LookAheadSwitch::is_on() const {
  if (mode_ != LookAhead::automatic) return mode_ == LookAhead::on;
  return pass_ < trial_passes ? pass_ % 2 == 0 : verdict_;
}

void LookAheadSwitch::add_pass(double seconds, int64_t reads) {
  if (mode_ != LookAhead::automatic) return;
  if (pass_ < trial_passes) {
    trial_[is_on() ? 1 : 0].push_back({seconds, static_cast<double>(reads)});
  }
  ++pass_;
  if (pass_ == trial_passes) verdict_ = pays();
  if (pass_ == trial_passes + verdict_passes) {
    pass_ = 0;
    for (std::vector<Pass>& side : trial_) side.clear();
  }
}

template <size_t size>
static double median(std::array<double, size>& values, size_t count) {
  const auto begin = values.begin(), middle = begin + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(begin, middle, begin + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

double LookAheadSwitch::seconds_per_read() const {
  std::array<double, trial_passes * trial_passes / 2> slopes{};
  size_t count = 0;
  for (const std::vector<Pass>& side : trial_) {
    for (auto a = side.begin(); a != side.end(); ++a) {
      for (auto b = a + 1; b != side.end(); ++b) {
        if (a->reads != b->reads) {
          slopes[count++] = (a->seconds - b->seconds) / (a->reads - b->reads);
        }
      }
    }
  }
  return count == 0 ? 0 : std::max(0.0, median(slopes, count));
}

bool LookAheadSwitch::pays() const {
  double reads = 0;
  for (const std::vector<Pass>& side : trial_) {
    for (const Pass& pass : side) reads += pass.reads;
  }
  if (reads == 0) return false;
  const double per_read = seconds_per_read();
  std::array<double, 2> seconds{};
  for (size_t side = 0; side < trial_.size(); ++side) {
    std::array<double, trial_passes> alike{};
    size_t count = 0;
    for (const Pass& pass : trial_[side]) {
      alike[count++] = pass.seconds + (reads / trial_passes - pass.reads) * per_read;
    }
    seconds[side] = median(alike, count);
  }
  return seconds[1] * gain_min <= seconds[0];
}

}  // namespace glmd
