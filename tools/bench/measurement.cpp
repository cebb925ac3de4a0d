#include "measurement.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>

namespace glmd {

static double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double measure_seconds(Team& team, int64_t count, int64_t grain,
                       const std::function<void(int64_t begin, int64_t end, int thread)>& work) {
  std::vector<double> seconds(static_cast<size_t>(team.thread_count()), 0.0);
  team.run(count, grain, [&](int64_t begin, int64_t end, int thread) {
    const double start = thread_seconds();
    work(begin, end, thread);
    seconds[static_cast<size_t>(thread)] = thread_seconds() - start;
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void report(const Measurement& m, bool as_json) {
  const double ratio = m.value / m.bound;
  if (as_json) {
    fmt::print(
        "{{\"bench\":\"{}\",\"format\":\"{}\",\"rows\":{},\"threads\":{},\"part\":\"{}\",\"value\":"
        "{:.3f},"
        "\"unit\":\"{}\",\"bound\":{:.3f},\"ratio\":{:.4f}}}\n",
        m.bench, m.format, m.rows, m.threads, m.part, m.value, m.unit, m.bound, ratio);
  } else {
    fmt::print("{:<16} {:<5} rows {:<4} threads {:<3} {:<8} {:>9.2f} {:<7} of {:>9.2f}: {:.2f}\n",
               m.bench, m.format, m.rows, m.threads, m.part, m.value, m.unit, m.bound, ratio);
  }
  fflush(stdout);
}

}  // namespace glmd
