// Bytes in any pieces become lines and payloads. The reader knows no verbs: whoever gets a line
// says, before asking for the next item, whether a payload follows it.
//
//   reader.feed(bytes);
//   while (auto item = reader.next()) { ... reader.expect_payload(n) or reader.expect_discard(n)
//   ... }
//
// Items are the same however the bytes were cut. Memory: what was fed and not yet taken, one line,
// one payload as far as it has come; nothing is reserved for a length that a peer only announced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "protocol/words.h"

namespace glmd::protocol {

struct Line {
  std::string text;  // without LF
};
struct Payload {
  std::string bytes;  // without LF; empty if discarded
};

class LineReader {
 public:
  using Item = std::variant<Line, Payload, Fault>;
  enum class Waiting { nothing, line_end, payload };

  void feed(std::string_view bytes);
  std::optional<Item>
  next();  // nothing: more bytes are needed; after a Fault nothing comes any more

  void expect_payload(int64_t bytes);  // exactly so many, then LF
  void expect_discard(int64_t bytes);  // the same, not kept
  void discard_rest();                 // of the payload that is coming; what came of it goes

  // What an end of input now would cut off.
  Waiting waiting() const;

 private:
  std::optional<Item> next_line();
  std::optional<Item> next_payload();
  Fault fail(ErrorCode code, std::string message);

  std::string input_;
  size_t taken_ = 0;     // bytes of input_ that are used up
  size_t searched_ = 0;  // bytes of input_ without LF
  bool is_in_payload_ = false;
  bool is_kept_ = false;
  bool has_failed_ = false;
  int64_t remaining_bytes_ = 0;
  std::string payload_;
};

}  // namespace glmd::protocol
