// Whether sharing tasks between threads pays here and now. Where other programs want the
// processors, a helper is sent to sleep in the middle of its part, and the thread that needs the
// result waits a slice of the scheduler, milliseconds, for what it had done itself in microseconds.
// So gains and losses are counted, and after a loss tasks are not shared for a while: 1 ms, then
// twice as long each time it was no better, at most 128 ms. Thread: the one that starts tasks.
#pragma once

#include <cstdint>

namespace glmd {

class SharingGain {
 public:
  bool is_paused(int64_t now_ns) const { return now_ns < paused_until_ns_; }

  // A task was shared: its starter worked `own_ns` for its part of it, in which others did
  // `others_share` (less than 1) of the whole, and then waited `waited_ns` for them.
  void note(int64_t own_ns, double others_share, int64_t waited_ns, int64_t now_ns);

 private:
  double balance_ns_ = 0;  // decayed; never far above 0, so that losses are noticed soon
  int64_t pause_ns_ = 0;
  int64_t paused_until_ns_ = 0;
};

}  // namespace glmd
