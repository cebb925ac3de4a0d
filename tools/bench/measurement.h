// Timing on a machine that others use too, and one way to report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "platform/parallel.h"

namespace glmd {

// Runs `work` over [0, count) on the team. Returns the CPU seconds of the slowest thread: on a busy
// machine the clock on the wall would count other programs.
double measure_seconds(Team& team, int64_t count, int64_t grain,
                       const std::function<void(int64_t begin, int64_t end, int thread)>& work);

double median(std::vector<double> values);

struct Measurement {
  std::string bench, format;
  int64_t rows;
  int threads;
  std::string part;  // what it is compared with
  double value;
  std::string unit;
  double bound;
};

// One line: a table row, or a JSON object.
void report(const Measurement& measurement, bool as_json);

}  // namespace glmd
