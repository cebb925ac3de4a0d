#include "experts/look_ahead.h"

#include <algorithm>
#include <map>

namespace glmd {

std::vector<int32_t> rank_guesses(std::span<const int32_t> guesses, int64_t chosen) {
  std::map<int32_t, int64_t> confidence;
  for (size_t i = 0; i < guesses.size(); ++i) {
    confidence[guesses[i]] += chosen - static_cast<int64_t>(i) % chosen;
  }
  std::vector<int32_t> experts;
  for (const auto& [expert, weight] : confidence) experts.push_back(expert);
  std::stable_sort(experts.begin(), experts.end(),
                   [&](int32_t a, int32_t b) { return confidence[a] > confidence[b]; });
  return experts;
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
