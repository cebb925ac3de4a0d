// What clients send: values, their text, and the reader that makes values from bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/limits.h"
#include "protocol/line_reader.h"
#include "protocol/words.h"

namespace glmd::protocol {

struct Hello {
  int64_t version = 1;
  std::string client;
  bool operator==(const Hello&) const = default;
};

enum class Format { raw, chat, tokens };

struct Submit {
  uint64_t id = 0;
  std::string slot = "-";
  std::optional<int64_t> tokens_max;  // unset, "-": up to the context's end
  std::optional<double> temperature;  // unset, "-": the checkpoint's
  std::optional<double> top_p;        // unset, "-": the checkpoint's
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  Format format = Format::raw;
  bool is_markup_trusted = false;   // markup=1
  bool is_waiting_refused = false;  // nowait=1: LOADING instead of a place in the queue
  std::string payload;
  bool operator==(const Submit&) const = default;
};

struct Cancel {
  std::optional<uint64_t> id;  // unset, "*": all of the connection
  bool operator==(const Cancel&) const = default;
};
struct Stop {
  uint64_t id = 0;
  bool operator==(const Stop&) const = default;
};
struct Ping {
  bool operator==(const Ping&) const = default;
};
struct Status {
  bool operator==(const Status&) const = default;
};
struct Plan {
  bool operator==(const Plan&) const = default;
};
struct Doctor {
  bool operator==(const Doctor&) const = default;
};

using Request = std::variant<Hello, Submit, Cancel, Stop, Ping, Status, Plan, Doctor>;

std::string format_request(const Request& request);

// A fault that closes the connection is the last item. Frames with other faults are skipped whole,
// with their payload, so that the next one is understood.
class RequestReader {
 public:
  using Item = std::variant<Request, Fault>;

  explicit RequestReader(const Limits& limits = {}) : limits_(limits) {}
  void feed(std::string_view bytes) { lines_.feed(bytes); }
  std::optional<Item> next();
  // The input ended: what it cut off, if anything.
  std::optional<Fault> finish() const;
  LineReader::Waiting waiting() const { return lines_.waiting(); }

  // The request whose payload is coming and kept, and how long that will be; else null and 0.
  const Submit* coming() const { return std::get_if<Submit>(&pending_); }
  int64_t coming_bytes() const { return coming() ? pending_bytes_ : 0; }
  // Its payload is skipped, and nothing comes of it.
  void drop_coming();

 private:
  std::optional<Item> read_line(const std::string& text);
  std::optional<Item> begin_submit(const Words& words);
  std::optional<Item> finish_submit(std::string payload);
  Item fail(Fault fault);

  Limits limits_;
  LineReader lines_;
  std::variant<std::monostate, Submit, Fault> pending_;  // waits for the payload; neither: skipped
  int64_t pending_bytes_ = 0;                            // of that payload
  bool has_failed_ = false;
};

// A browser or a TLS client on our socket is cut off without a word, so that no page can speak
// through it.
enum class Opening { ours, foreign, undecided };
Opening judge_opening(std::string_view first_bytes);

}  // namespace glmd::protocol
