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
  seconds_on_.reserve(trial_passes);
  seconds_off_.reserve(trial_passes);
}

bool LookAheadSwitch::is_on() const {
  if (mode_ != LookAhead::automatic) return mode_ == LookAhead::on;
  return pass_ < trial_passes ? pass_ % 2 == 0 : verdict_;
}

static double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void LookAheadSwitch::add_pass(double seconds, int64_t misses) {
  if (mode_ != LookAhead::automatic) return;
  if (pass_ < trial_passes) {
    (is_on() ? seconds_on_ : seconds_off_).push_back(seconds);
    misses_ += misses;
  }
  ++pass_;
  if (pass_ == trial_passes) {
    verdict_ = misses_ > 0 && median(seconds_on_) * gain_min <= median(seconds_off_);
  }
  if (pass_ == trial_passes + verdict_passes) {
    pass_ = misses_ = 0;
    seconds_on_.clear();
    seconds_off_.clear();
  }
}

}  // namespace glmd
