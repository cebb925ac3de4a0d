#include "generation/read_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace glmd {
namespace {

constexpr int64_t pause_ns_min = PendingRead::hanging_ms * 1'000'000;

std::string name_of(const PendingRead& read) {
  return fmt::format("{}: read of {} bytes at {}", read.path, read.bytes, read.offset);
}

}  // namespace

std::optional<std::string> ReadWatch::look(const std::optional<PendingRead>& oldest,
                                           int64_t now_ns) {
  if (told_ && told_ != oldest) {
    const PendingRead ended = *std::exchange(told_, std::nullopt);
    return fmt::format("{}: ended after {} s, continuing", name_of(ended), ended.seconds(now_ns));
  }
  if (!oldest || !oldest->hangs(now_ns)) {
    if (now_ns - hung_ns_ > pause_ns_) pause_ns_ = 0;
    return std::nullopt;
  }
  hung_ns_ = now_ns;
  if (pause_ns_ > 0 && now_ns - warned_ns_ < pause_ns_) return std::nullopt;
  warned_ns_ = now_ns;
  pause_ns_ = std::max(2 * pause_ns_, pause_ns_min);
  told_ = oldest;
  return fmt::format("{}: no answer for {} s, waiting", name_of(*oldest), oldest->seconds(now_ns));
}

}  // namespace glmd
