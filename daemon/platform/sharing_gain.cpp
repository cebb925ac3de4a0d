#include "platform/sharing_gain.h"

#include <algorithm>

namespace glmd {
namespace {

constexpr double decay = 0.9;  // a task
constexpr double balance_ns_max = 100e3, balance_ns_min = -50e3;
constexpr int64_t pause_ns_least = 1'000'000, pause_ns_most = 128'000'000;

}  // namespace

// Alone, the starter had worked for the others' part at the rate of its own.
void SharingGain::note(int64_t own_ns, double others_share, int64_t waited_ns, int64_t now_ns) {
  const double saved_ns = static_cast<double>(own_ns) * others_share / (1 - others_share);
  balance_ns_ = decay * balance_ns_ + saved_ns - static_cast<double>(waited_ns);
  if (balance_ns_ >= balance_ns_max) {
    balance_ns_ = balance_ns_max;
    pause_ns_ = 0;
  }
  if (balance_ns_ > balance_ns_min) return;
  balance_ns_ = 0;
  pause_ns_ = std::clamp(2 * pause_ns_, pause_ns_least, pause_ns_most);
  paused_until_ns_ = now_ns + pause_ns_;
}

}  // namespace glmd
