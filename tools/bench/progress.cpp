#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "platform/standard_streams.h"

namespace glmd {

Progress::Progress(std::string doing, std::string unit, int64_t total)
    : doing_(std::move(doing)),
      unit_(std::move(unit)),
      total_(total),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {
  // At once, so that what takes minutes does not begin with silence.
  print_text(stderr, "glmd-bench: {}: {} {}{}", doing_, total_, unit_, is_terminal_ ? "" : "\n");
  std::fflush(stderr);
}

Progress::~Progress() {
  if (is_terminal_) print_text(stderr, "\r\033[K");
}

void Progress::show(int64_t done, const std::string& rate) {
  const auto now = std::chrono::steady_clock::now();
  const auto pause = is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(5);
  if (now - shown_at_ < pause) return;
  shown_at_ = now;
  const double seconds = std::chrono::duration<double>(now - started_at_).count();
  const double left_seconds = seconds * static_cast<double>(total_ - done) /
                              static_cast<double>(std::max<int64_t>(1, done));
  print_text(stderr, "{}glmd-bench: {}: {} of {} {}{}{}, {:.0f} s left{}",
             is_terminal_ ? "\r\033[K" : "", doing_, done, total_, unit_, rate.empty() ? "" : ", ",
             rate, left_seconds, is_terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace glmd
