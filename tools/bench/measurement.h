// Timing on a machine that others use too, and one way to report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "platform/parallel.h"

namespace glmd {

// Runs `work` over [0, count) on the team. Returns the CPU seconds of the slowest thread: on a busy
// machine the clock on the wall would count other programs.
double measure_seconds(Team& team, int64_t count, int64_t grain, Team::Task work);

double median(std::vector<double> values);
// What was reached of a bound that moves, in the middle: each time has a bound of its own. Seconds.
double median_ratio(const std::vector<double>& bounds, const std::vector<double>& times);

// What was varied: a name and a word or a number.
using Varied = std::vector<std::pair<std::string, std::variant<std::string, int64_t, double>>>;

struct Measurement {
  std::string bench;
  Varied varied;
  std::string part;  // of the work, or what it is compared with
  double value = 0;
  std::string unit;
  std::optional<double> bound;  // in the same unit; the ratio is value / bound
};

// One line: a table row, or a JSON object with members bench, what was varied, part, value, unit,
// bound, ratio; the last two are null where there is no bound.
std::string line_of(const Measurement& measurement, bool as_json);
// That line on stdout.
void report(const Measurement& measurement, bool as_json);

}  // namespace glmd
