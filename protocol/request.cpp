#include "protocol/request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/quoting.h"

namespace glmd::protocol {
namespace {

Fault bad_value(std::optional<uint64_t> id, std::string message) {
  return {ErrorCode::bad_value, id, std::move(message)};
}

std::string_view name_of(Format format) {
  if (format == Format::chat) return "chat";
  if (format == Format::tokens) return "tokens";
  return "raw";
}

template <typename T>
std::string or_dash(const std::optional<T>& value) {
  if (!value) return "-";
  if constexpr (std::is_same_v<T, double>)
    return format_real(*value);
  else
    return std::to_string(*value);
}

struct Formatter {
  std::string operator()(const Hello& hello) const {
    std::string line = "HELLO GLMD/" + std::to_string(hello.version);
    if (!hello.client.empty()) line += " client=" + quote_if_needed(hello.client);
    return line + "\n";
  }
  std::string operator()(const Submit& submit) const {
    std::string text = "SUBMIT " + std::to_string(submit.id) + " " + submit.slot + " " +
                       std::to_string(submit.payload.size()) + " " + or_dash(submit.tokens_max) +
                       " " + or_dash(submit.temperature) + " " + or_dash(submit.top_p);
    if (submit.seed) text += " seed=" + std::to_string(*submit.seed);
    for (const std::string& stop : submit.stops) text += " stop=" + quote(stop);
    if (submit.format != Format::raw) text += " fmt=" + std::string(name_of(submit.format));
    if (submit.is_markup_trusted) text += " markup=1";
    if (submit.is_waiting_refused) text += " nowait=1";
    return text + "\n" + submit.payload + "\n";
  }
  std::string operator()(const Cancel& cancel) const {
    return "CANCEL " + (cancel.id ? std::to_string(*cancel.id) : "*") + "\n";
  }
  std::string operator()(const Stop& stop) const {
    return "STOP " + std::to_string(stop.id) + "\n";
  }
  std::string operator()(const Ping&) const { return "PING\n"; }
  std::string operator()(const Status&) const { return "STATUS\n"; }
  std::string operator()(const Plan&) const { return "PLAN\n"; }
  std::string operator()(const Doctor&) const { return "DOCTOR\n"; }
};

// One word of SUBMIT that may be "-". Nothing: malformed or out of range.
template <typename T>
bool read_or_dash(const std::string& word, std::optional<T> parsed, T least, T most,
                  std::optional<T>& target) {
  if (word == "-") return true;
  if (!parsed || *parsed < least || *parsed > most) return false;
  target = parsed;
  return true;
}

std::optional<bool> parse_flag(std::string_view value) {
  if (value == "0") return false;
  if (value == "1") return true;
  return std::nullopt;
}

// The message for the client, or nothing when the key was understood.
std::optional<std::string> read_key(const std::string& key, const std::string& value,
                                    Submit& submit) {
  if (key == "seed") {
    submit.seed = parse_unsigned(value);
    if (!submit.seed) return "seed is a number below 2^64";
  } else if (key == "stop") {
    if (value.empty() || find_invalid_utf8(value))
      return "stop is a text of at least one character";
    submit.stops.push_back(value);
    if (std::ssize(submit.stops) > stop_count_max) return "at most 16 stop texts";
  } else if (key == "fmt") {
    if (value == "raw")
      submit.format = Format::raw;
    else if (value == "chat")
      submit.format = Format::chat;
    else if (value == "tokens")
      submit.format = Format::tokens;
    else
      return "fmt is raw, chat or tokens";
  } else if (key == "markup" || key == "nowait") {
    const auto flag = parse_flag(value);
    if (!flag) return key + " is 0 or 1";
    (key == "markup" ? submit.is_markup_trusted : submit.is_waiting_refused) = *flag;
  } else {
    return "the key " + key + " is not supported";
  }
  return std::nullopt;
}

std::variant<Submit, Fault> read_submit(const Words& words) {
  Submit submit;
  const auto id = parse_id(words.positional[0]);
  if (!id) return bad_value(std::nullopt, "an id is a number from 1 to 2^64-1");
  submit.id = *id;
  submit.slot = words.positional[1];
  const std::string& tokens = words.positional[3];
  if (!read_or_dash<int64_t>(tokens, parse_number(tokens), 1, tokens_max_max, submit.tokens_max)) {
    return bad_value(id, "max is a number from 1, or -");
  }
  const std::string& temperature = words.positional[4];
  if (!read_or_dash(temperature, parse_real(temperature), 0.0, temperature_max,
                    submit.temperature)) {
    return bad_value(id, "temperature is a decimal from 0 to 100, or -");
  }
  const std::string& top_p = words.positional[5];
  if (!read_or_dash(top_p, parse_real(top_p), 1e-9, 1.0, submit.top_p)) {
    return bad_value(id, "top_p is a decimal above 0 and at most 1, or -");
  }
  for (const auto& [key, value] : words.keys) {
    if (auto message = read_key(key, value, submit)) return bad_value(id, std::move(*message));
  }
  return submit;
}

// A grammar is a second payload behind the first one's LF; not supported yet, but skipped whole.
std::optional<int64_t> payload_bytes_of(const Words& words) {
  const auto bytes = parse_number(words.positional[2]);
  if (!bytes) return std::nullopt;
  const std::string* grammar = words.find("grammar");
  if (!grammar) return bytes;
  const auto grammar_bytes = parse_number(*grammar);
  if (!grammar_bytes || *bytes > INT64_MAX / 4 || *grammar_bytes > INT64_MAX / 4)
    return std::nullopt;
  return *bytes + 1 + *grammar_bytes;
}

std::optional<uint64_t> only_id_of(const Words& words) {
  if (words.positional.size() != 1) return std::nullopt;
  return parse_id(words.positional[0]);
}

// A verb that stands alone.
std::optional<Request> read_bare_request(std::string_view verb) {
  if (verb == "PING") return Ping{};
  if (verb == "STATUS") return Status{};
  if (verb == "PLAN") return Plan{};
  if (verb == "DOCTOR") return Doctor{};
  return std::nullopt;
}

std::variant<Request, Fault> read_hello(const Words& words) {
  constexpr std::string_view prefix = "GLMD/";
  if (words.positional.size() != 1 || !words.positional[0].starts_with(prefix)) {
    return bad_value(std::nullopt, "HELLO GLMD/1 is expected");
  }
  const auto number = parse_number(std::string_view(words.positional[0]).substr(prefix.size()));
  if (!number) return bad_value(std::nullopt, "HELLO GLMD/1 is expected");
  if (*number != protocol_version)
    return Fault{ErrorCode::version, std::nullopt, "this server speaks GLMD/1"};
  const std::string* client = words.find("client");
  return Hello{*number, client ? *client : ""};
}

// Every verb without a payload. Keys that are not known here are skipped: they ask for nothing that
// could be refused.
std::variant<Request, Fault> read_short_request(const Words& words) {
  if (words.verb == "HELLO") return read_hello(words);
  if (const auto request = read_bare_request(words.verb)) {
    if (words.positional.empty()) return *request;
    return bad_value(std::nullopt, words.verb + " takes no arguments");
  }
  if (words.verb == "CANCEL" && words.positional.size() == 1 && words.positional[0] == "*") {
    return Cancel{};
  }
  if (words.verb == "CANCEL" || words.verb == "STOP") {
    const auto id = only_id_of(words);
    if (!id) return bad_value(std::nullopt, words.verb + " takes one id");
    if (words.verb == "STOP") return Stop{*id};
    return Cancel{id};
  }
  return Fault{ErrorCode::unknown_verb, std::nullopt, words.verb};
}

}  // namespace

std::string format_request(const Request& request) {
  return std::visit(Formatter{}, request);
}

std::optional<RequestReader::Item> RequestReader::next() {
  while (!has_failed_) {
    auto item = lines_.next();
    if (!item) return std::nullopt;
    if (auto* fault = std::get_if<Fault>(&*item)) return fail(std::move(*fault));
    auto* payload = std::get_if<Payload>(&*item);
    auto result =
        payload ? finish_submit(std::move(payload->bytes)) : read_line(std::get<Line>(*item).text);
    if (result) return result;
  }
  return std::nullopt;
}

std::optional<Fault> RequestReader::finish() const {
  if (waiting() == LineReader::Waiting::line_end) {
    return Fault{ErrorCode::bad_line, std::nullopt, "the last line has no LF"};
  }
  if (waiting() == LineReader::Waiting::payload) {
    const auto* submit = std::get_if<Submit>(&pending_);
    return Fault{ErrorCode::bad_frame, submit ? std::optional(submit->id) : std::nullopt,
                 "the input ended within a payload or before its LF"};
  }
  return std::nullopt;
}

std::optional<RequestReader::Item> RequestReader::read_line(const std::string& text) {
  auto parsed = parse_words(text);
  if (auto* fault = std::get_if<Fault>(&parsed)) return fail(std::move(*fault));
  const Words& words = std::get<Words>(parsed);
  if (words.verb == "SUBMIT") return begin_submit(words);
  auto request = read_short_request(words);
  if (auto* fault = std::get_if<Fault>(&request)) return Item(std::move(*fault));
  return Item(std::move(std::get<Request>(request)));
}

std::optional<RequestReader::Item> RequestReader::begin_submit(const Words& words) {
  if (words.positional.size() != 6) {
    return fail({ErrorCode::bad_frame, std::nullopt,
                 "SUBMIT id slot bytes max temperature top_p [key=value...]"});
  }
  const auto id = parse_id(words.positional[0]);
  const auto bytes = payload_bytes_of(words);
  if (!bytes) return fail({ErrorCode::bad_frame, id, "the count of payload bytes is malformed"});
  if (*bytes > limits_.discard_bytes_max) {
    return fail({ErrorCode::bad_frame, id, "a payload too large even to skip"});
  }
  if (*bytes > limits_.payload_bytes_max) {
    pending_ =
        Fault{ErrorCode::too_large, id,
              "a payload has at most " + std::to_string(limits_.payload_bytes_max) + " bytes"};
    lines_.expect_discard(*bytes);
    return std::nullopt;
  }
  auto submit = read_submit(words);
  if (auto* fault = std::get_if<Fault>(&submit)) {
    pending_ = std::move(*fault);
    lines_.expect_discard(*bytes);
  } else {
    pending_ = std::move(std::get<Submit>(submit));
    pending_bytes_ = *bytes;
    lines_.expect_payload(*bytes);
  }
  return std::nullopt;
}

void RequestReader::drop_coming() {
  pending_ = std::monostate{};
  lines_.discard_rest();
}

std::optional<RequestReader::Item> RequestReader::finish_submit(std::string payload) {
  auto pending = std::exchange(pending_, std::monostate{});
  if (std::holds_alternative<std::monostate>(pending)) return std::nullopt;
  if (auto* fault = std::get_if<Fault>(&pending)) return std::move(*fault);
  Submit submit = std::move(std::get<Submit>(pending));
  if (const auto index = find_invalid_utf8(payload)) {
    return bad_value(submit.id, "the prompt is not UTF-8 at byte " + std::to_string(*index));
  }
  submit.payload = std::move(payload);
  return Request(std::move(submit));
}

RequestReader::Item RequestReader::fail(Fault fault) {
  has_failed_ = true;
  return fault;
}

Opening judge_opening(std::string_view first_bytes) {
  constexpr std::array<std::string_view, 5> foreign = {"GET ", "POST", "PUT ", "HEAD", "\x16"};
  Opening opening = Opening::ours;
  for (const std::string_view start : foreign) {
    if (first_bytes.starts_with(start)) return Opening::foreign;
    if (start.starts_with(first_bytes)) opening = Opening::undecided;
  }
  return opening;
}

}  // namespace glmd::protocol
