#include "tools/convert/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "platform/standard_streams.h"

namespace glmd {
namespace {

volatile std::sig_atomic_t wants_stop = 0;

void ask_to_stop(int) {
  wants_stop = 1;
}

}  // namespace

ProgressLine::ProgressLine(std::string program)
    : program_(std::move(program)), is_terminal_(::isatty(STDERR_FILENO) == 1) {
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
}

bool ProgressLine::show(const ConvertProgress& progress) {
  if (!progress.note.empty()) {
    clear();
    print_text(stderr, "{}: {}\n", program_, progress.note);
    return wants_stop == 0;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool is_last = progress.bytes_done == progress.bytes_total;
  if (now - shown_at_ <
          (is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10)) &&
      !is_last)
    return wants_stop == 0;
  shown_at_ = now;
  const double seconds = std::chrono::duration<double>(now - started_at_).count();
  const double done = static_cast<double>(progress.bytes_done - progress.bytes_kept);
  const double a_second = 1 / std::max(seconds, 1e-3);
  const double left = static_cast<double>(progress.bytes_total - progress.bytes_done);
  print_text(stderr, "{}{}: {} {:.1f} of {:.1f} MB, {:.0f} MB/s{}, {:.0f} s left{}",
             is_terminal_ ? "\r\033[K" : "", program_, progress.file,
             static_cast<double>(progress.bytes_done) / 1e6,
             static_cast<double>(progress.bytes_total) / 1e6, done / 1e6 * a_second,
             progress.weights_done > 0
                 ? fmt::format(", {:.1f} million weights/s",
                               static_cast<double>(progress.weights_done) / 1e6 * a_second)
                 : "",
             done > 0 ? left * seconds / done : 0.0, is_terminal_ ? "" : "\n");
  std::fflush(stderr);
  return wants_stop == 0;
}

void ProgressLine::clear() {
  if (is_terminal_) print_text(stderr, "\r\033[K");
}

}  // namespace glmd
