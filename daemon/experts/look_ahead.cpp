#include "experts/look_ahead.h"

#include <algorithm>
#include <array>

namespace glmd {
namespace {

// A few values, kept without taking memory.
template <size_t size>
class Values {
 public:
  void add(double value) { values_[count_++] = value; }
  double median() {
    if (count_ == 0) return 0;
    const auto begin = values_.begin();
    const auto middle = begin + static_cast<std::ptrdiff_t>(count_ / 2);
    std::nth_element(begin, middle, begin + static_cast<std::ptrdiff_t>(count_));
    return *middle;
  }

 private:
  std::array<double, size> values_{};
  size_t count_ = 0;
};

}  // namespace

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
  trial_.reserve(trial_passes);
}

bool LookAheadSwitch::is_on() const {
  if (mode_ != LookAhead::automatic) return mode_ == LookAhead::on;
  return std::ssize(trial_) < trial_passes ? trial_.size() % 2 == 0 : verdict_;
}

std::string_view LookAheadSwitch::state() const {
  const bool tries = mode_ == LookAhead::automatic && std::ssize(trial_) < trial_passes;
  return tries ? "trying" : is_on() ? "on" : "off";
}

void LookAheadSwitch::add_pass(double seconds, int64_t reads) {
  if (mode_ != LookAhead::automatic) return;
  if (std::ssize(trial_) < trial_passes) {
    trial_.push_back({seconds, static_cast<double>(reads)});
    if (std::ssize(trial_) < trial_passes) return;
    verdict_ = pays();
    passes_left_ = verdict_passes;
  } else if (--passes_left_ == 0) {
    trial_.clear();
  }
}

// The median slope between passes of the same side that are near each other (Theil, Sen).
double LookAheadSwitch::seconds_per_read() const {
  constexpr size_t apart_max = 8;
  Values<trial_passes * apart_max / 2> slopes;
  for (size_t b = 0; b < trial_.size(); ++b) {
    for (size_t apart = 2; apart <= std::min(b, apart_max); apart += 2) {
      const Pass& one = trial_[b - apart];
      const Pass& other = trial_[b];
      if (one.reads == other.reads) continue;
      slopes.add((other.seconds - one.seconds) / (other.reads - one.reads));
    }
  }
  return std::max(0.0, slopes.median());
}

bool LookAheadSwitch::pays() const {
  const double per_read = seconds_per_read();
  Values<trial_passes> seconds, gains;
  bool has_reads = false;
  for (size_t i = 0; i < trial_.size(); ++i) {
    seconds.add(trial_[i].seconds);
    has_reads |= trial_[i].reads > 0;
    if (i == 0) continue;
    const Pass& with = trial_[i - i % 2];
    const Pass& without = trial_[i - 1 + i % 2];
    gains.add(without.seconds - with.seconds - (without.reads - with.reads) * per_read);
  }
  return has_reads && gains.median() >= (gain_min - 1) * seconds.median();
}

}  // namespace glmd
