#include "stream_bound.h"

#include <algorithm>

#include "platform/check.h"

namespace glmd {

StreamBound bound_of(std::span<const StreamPiece> pieces, std::span<const AloneSlice> slices) {
  CHECK(slices.size() == pieces.size() + 1);
  StreamBound bound;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const StreamPiece& piece = pieces[i];
    const AloneSlice &before = slices[i], &after = slices[i + 1];
    const double compute =
        static_cast<double>(piece.tokens) * std::min(before.compute_seconds, after.compute_seconds);
    bound.seconds += piece.seconds;
    bound.compute_seconds += compute;
    bound.disk_seconds +=
        piece.needed_bytes / std::max(before.disk_bytes_per_s, after.disk_bytes_per_s);
    bound.serial_seconds += compute + piece.needed_bytes / std::max(before.serial_bytes_per_s,
                                                                    after.serial_bytes_per_s);
  }
  return bound;
}

}  // namespace glmd
