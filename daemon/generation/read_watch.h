// What the log says of reads that hang: which, again after pauses that double, and in the end how
// long it took. A disk that hangs now and then does not fill the log either: the pauses are short
// again after a calm as long as the last one. Thread: compute.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/model.h"

namespace glmd {

class ReadWatch {
 public:
  // Every second or so, with the oldest read under way: a line for the log, if it is time for one.
  std::optional<std::string> look(const std::optional<PendingRead>& oldest, int64_t now_ns);

 private:
  std::optional<PendingRead> told_;  // and has not ended
  int64_t pause_ns_ = 0;             // from the last warning to the next
  int64_t warned_ns_ = 0, hung_ns_ = 0;
};

}  // namespace glmd
