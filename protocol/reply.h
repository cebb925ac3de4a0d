// What servers send: values, their text, and the reader that makes values from bytes. Frames and
// keys of a later version are skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "protocol/error_code.h"
#include "protocol/line_reader.h"
#include "protocol/words.h"

namespace glmd::protocol {

struct HelloOk {
  int64_t version = 1;
  std::string state;  // "loading", "ready", "draining"
  std::string server;
  int64_t line_bytes_max = 0, payload_bytes_max = 0;
  bool operator==(const HelloOk&) const = default;
};
struct Accept {
  uint64_t id = 0;
  int64_t slot = 0, prompt_tokens = 0, cached_tokens = 0;
  bool operator==(const Accept&) const = default;
};
struct Queued {
  uint64_t id = 0;
  int64_t position = 0;
  bool operator==(const Queued&) const = default;
};
struct Prefill {
  uint64_t id = 0;
  int64_t done_tokens = 0, prompt_tokens = 0;
  bool operator==(const Prefill&) const = default;
};
struct Data {
  uint64_t id = 0;
  bool is_thought = false;  // THINK instead of DATA
  std::string text;
  bool operator==(const Data&) const = default;
};
struct Done {
  uint64_t id = 0;
  std::string reason;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::optional<uint64_t> seed;
  double first_token_ms = 0, tokens_per_second = 0;
  bool operator==(const Done&) const = default;
};
struct Failed {
  std::optional<uint64_t> id;  // unset, "-": the connection
  ErrorCode code = ErrorCode::internal;
  int64_t retry_ms = 0;  // 0: no advice
  std::string message;
  bool operator==(const Failed&) const = default;
};
struct Info {
  std::string topic;  // "ping", "status"
  std::string json;
  bool operator==(const Info&) const = default;
};

using Reply = std::variant<HelloOk, Accept, Queued, Prefill, Data, Done, Failed, Info>;

std::string format_reply(const Reply& reply);

class ReplyReader {
 public:
  using Item = std::variant<Reply, Fault>;

  void feed(std::string_view bytes) { lines_.feed(bytes); }
  std::optional<Item> next();  // a Fault is the last item
  LineReader::Waiting waiting() const { return lines_.waiting(); }

 private:
  std::optional<Item> read_line(const std::string& text);
  Item fail(std::string message);

  LineReader lines_;
  std::variant<std::monostate, Data, Info> pending_;  // waits for its payload; neither: skipped
  bool has_failed_ = false;
};

}  // namespace glmd::protocol
