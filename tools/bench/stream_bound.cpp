#include "stream_bound.h"

#include <algorithm>

#include "platform/check.h"

namespace glmd {

double together_seconds(const AloneSlice& slice, double bytes, double tokens) {
  const double disk = bytes / slice.together_disk_bytes_per_s;
  const double slowdown = slice.together_compute_seconds / slice.compute_seconds;
  const double body = tokens * (slice.compute_seconds - slice.head_seconds);  // were it alone
  const double both = std::min(disk, body * slowdown);
  const double bytes_left = bytes - both * slice.together_disk_bytes_per_s;
  return tokens * slice.head_seconds + both + std::max(0.0, bytes_left) / slice.disk_bytes_per_s +
         std::max(0.0, body - both / slowdown);
}

StreamBound bound_of(std::span<const StreamPiece> pieces, std::span<const AloneSlice> slices) {
  CHECK(slices.size() == pieces.size() + 1);
  StreamBound bound;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const StreamPiece& piece = pieces[i];
    const AloneSlice &before = slices[i], &after = slices[i + 1];
    const auto tokens = static_cast<double>(piece.tokens);
    const AloneSlice& faster = before.compute_seconds < after.compute_seconds ? before : after;
    const double compute = tokens * faster.compute_seconds;
    bound.seconds += piece.seconds;
    bound.together_seconds += std::min(together_seconds(before, piece.needed_bytes, tokens),
                                       together_seconds(after, piece.needed_bytes, tokens));
    bound.compute_seconds += compute;
    bound.head_seconds += tokens * faster.head_seconds;
    bound.disk_seconds +=
        piece.needed_bytes / std::max(before.disk_bytes_per_s, after.disk_bytes_per_s);
    bound.serial_seconds += compute + piece.needed_bytes / std::max(before.serial_bytes_per_s,
                                                                    after.serial_bytes_per_s);
  }
  return bound;
}

}  // namespace glmd
