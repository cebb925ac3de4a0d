#include "measurement.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "platform/standard_streams.h"

namespace glmd {

static double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double measure_seconds(Team& team, int64_t count, int64_t grain, Team::Task work) {
  std::vector<double> seconds(static_cast<size_t>(team.thread_count()), 0.0);
  team.run(count, grain, [&](int64_t begin, int64_t end, int thread) {
    const double start = thread_seconds();
    work(begin, end, thread);
    seconds[static_cast<size_t>(thread)] += thread_seconds() - start;
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double median_ratio(const std::vector<double>& bounds, const std::vector<double>& times) {
  std::vector<double> ratios;
  for (size_t i = 0; i < times.size(); ++i) ratios.push_back(bounds[i] / times[i]);
  return median(ratios);
}

static std::string text_of(const std::variant<std::string, int64_t, double>& value, bool quoted) {
  if (const auto* word = std::get_if<std::string>(&value)) {
    return quoted ? fmt::format("\"{}\"", *word) : *word;
  }
  if (const auto* number = std::get_if<int64_t>(&value)) return fmt::format("{}", *number);
  return fmt::format("{:g}", std::get<double>(value));
}

// JSON has no word for what is no number.
static std::string json_number(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}g}", value, digits) : "null";
}

std::string line_of(const Measurement& m, bool as_json) {
  std::string line = as_json ? fmt::format("{{\"bench\":\"{}\"", m.bench) : m.bench;
  for (const auto& [name, value] : m.varied) {
    line += as_json ? fmt::format(",\"{}\":{}", name, text_of(value, true))
                    : fmt::format("  {} {:<8}", name, text_of(value, false));
  }
  if (as_json) {
    line += fmt::format(",\"part\":\"{}\",\"value\":{},\"unit\":\"{}\"", m.part,
                        json_number(m.value, 6), m.unit);
    line += m.bound ? fmt::format(",\"bound\":{},\"ratio\":{}", json_number(*m.bound, 6),
                                  json_number(m.value / *m.bound, 4))
                    : ",\"bound\":null,\"ratio\":null";
    return line + "}\n";
  }
  line += fmt::format("  {:<20} {:>10.2f} {:<6}", m.part, m.value, m.unit);
  if (m.bound) line += fmt::format(" of {:>10.2f}: {:.2f}", *m.bound, m.value / *m.bound);
  return line + "\n";
}

void report(const Measurement& measurement, bool as_json) {
  print_text(stdout, "{}", line_of(measurement, as_json));
  fflush(stdout);
}

}  // namespace glmd
