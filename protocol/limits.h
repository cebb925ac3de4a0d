// What the line protocol allows at most. Both ends and the tests use these numbers; nothing else
// bounds a peer.
#pragma once

#include <cstdint>

namespace glmd::protocol {

inline constexpr int64_t protocol_version = 1;

inline constexpr int64_t mebibyte = int64_t{1} << 20;
inline constexpr int64_t line_bytes_max = 4096;  // with its LF
inline constexpr int64_t verb_bytes_max = 16;
inline constexpr int64_t key_bytes_max = 32;
inline constexpr int64_t stop_count_max = 16;
inline constexpr int64_t tokens_max_max = int64_t{1} << 40;  // refuses what no context can hold
inline constexpr double temperature_max = 100;
// A client keeps what a server sends within this; servers send far less at once.
inline constexpr int64_t reply_payload_bytes_max = 64 * mebibyte;

// What a server grants. Tests shorten the times.
struct Limits {
  int64_t payload_bytes_max = 8 * mebibyte;
  int64_t discard_bytes_max =
      64 * mebibyte;          // up to here a payload is read and dropped; above: close
  int64_t live_ids_max = 64;  // per connection
  int64_t pending_input_bytes_max = 32 * mebibyte;   // prompts of live requests, per connection
  int64_t queued_input_bytes_max = 256 * mebibyte;   // the same, all connections together
  int64_t output_hold_bytes = 1 * mebibyte;          // unread output at which sessions are held
  int64_t output_stop_reading_bytes = 2 * mebibyte;  // ... and at which no more requests are read
  int64_t output_bytes_max = 4 * mebibyte;           // ... and at which they end with SLOW_CLIENT
  int64_t output_stall_ms = 30'000;                  // unread output without progress: the same
  int64_t connections_per_uid_max = 16;
  int64_t header_timeout_ms = 10'000;   // from the first byte of a line to its LF
  int64_t payload_timeout_ms = 30'000;  // without progress
};

}  // namespace glmd::protocol
