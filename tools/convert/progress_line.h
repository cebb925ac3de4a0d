// How far a program is that writes a container: one line on stderr, rewritten on a terminal, added
// every few seconds to a file. Thread: main.
#pragma once

#include <chrono>
#include <string>

#include "tools/convert/converter.h"

namespace glmd {

class ProgressLine {
 public:
  // SIGINT and SIGTERM from now on make show() answer false.
  explicit ProgressLine(std::string program);

  // False: asked to stop.
  bool show(const ConvertProgress& progress);
  void clear();

 private:
  const std::string program_;
  const bool is_terminal_;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_at_ = started_at_;
};

}  // namespace glmd
