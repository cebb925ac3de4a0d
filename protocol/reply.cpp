#include "protocol/reply.h"

#include <utility>

#include "protocol/limits.h"
#include "protocol/quoting.h"

namespace glmd::protocol {
namespace {

// " name=value", or a payload with its count: the two shapes that frames are made of.
std::string pair(std::string_view key, int64_t value) {
  return " " + std::string(key) + "=" + std::to_string(value);
}

std::string with_payload(const std::string& line, const std::string& payload) {
  return line + " " + std::to_string(payload.size()) + "\n" + payload + "\n";
}

// A message that would not fit its line is cut at a character.
std::string shortened(const std::string& message) {
  constexpr size_t bytes_max = 900;  // quoted at most four times as long: within a line of 4096
  if (message.size() <= bytes_max) return message;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<uint8_t>(message[end]) & 0xC0) == 0x80) --end;
  return message.substr(0, end);
}

struct Formatter {
  std::string operator()(const HelloOk& hello) const {
    std::string line = "OK HELLO GLMD/" + std::to_string(hello.version) + " state=" + hello.state;
    if (!hello.server.empty()) line += " server=" + quote_if_needed(hello.server);
    return line + pair("max_line", hello.line_bytes_max) +
           pair("max_payload", hello.payload_bytes_max) + "\n";
  }
  std::string operator()(const Accept& accept) const {
    return "ACCEPT " + std::to_string(accept.id) + pair("slot", accept.slot) +
           pair("prompt", accept.prompt_tokens) + pair("cached", accept.cached_tokens) + "\n";
  }
  std::string operator()(const Queued& queued) const {
    return "QUEUED " + std::to_string(queued.id) + pair("pos", queued.position) + "\n";
  }
  std::string operator()(const Prefill& prefill) const {
    return "PREFILL " + std::to_string(prefill.id) + " " + std::to_string(prefill.done_tokens) +
           "/" + std::to_string(prefill.prompt_tokens) + "\n";
  }
  std::string operator()(const Data& data) const {
    return with_payload((data.is_thought ? "THINK " : "DATA ") + std::to_string(data.id),
                        data.text);
  }
  std::string operator()(const Done& done) const {
    std::string line = "DONE " + std::to_string(done.id) +
                       " reason=" + quote_if_needed(done.reason) +
                       pair("prompt", done.prompt_tokens) + pair("cached", done.cached_tokens) +
                       pair("completion", done.completion_tokens);
    if (done.seed) line += " seed=" + std::to_string(*done.seed);
    return line + " ttft_ms=" + format_real(done.first_token_ms) +
           " tps=" + format_real(done.tokens_per_second) + "\n";
  }
  std::string operator()(const Failed& failed) const {
    std::string line = "ERROR " + (failed.id ? std::to_string(*failed.id) : "-") + " ";
    line += to_string(failed.code);
    if (failed.retry_ms > 0) line += pair("retry_ms", failed.retry_ms);
    if (!failed.message.empty()) line += " msg=" + quote(shortened(failed.message));
    return line + "\n";
  }
  std::string operator()(const Info& info) const {
    return with_payload("INFO " + info.topic, info.json);
  }
};

// Reads the words of one reply in order; the first thing amiss makes the whole false.
class Fields {
 public:
  explicit Fields(const Words& words) : words_(words) {}

  bool are_good() const { return is_good_; }

  std::string word() {
    if (index_ == words_.positional.size()) return lose<std::string>();
    return words_.positional[index_++];
  }
  uint64_t id() { return need(parse_id(word())); }
  int64_t number() { return need(parse_number(word())); }
  int64_t number(std::string_view key) { return need(parse_number(text(key))); }
  std::string text(std::string_view key) {
    const std::string* value = words_.find(key);
    return value ? *value : lose<std::string>();
  }

  int64_t number_or_0(std::string_view key) { return words_.find(key) ? number(key) : 0; }
  double real_or_0(std::string_view key) {
    const std::string* value = words_.find(key);
    return value ? need(parse_real(*value)) : 0;
  }
  std::string text_or_empty(std::string_view key) {
    const std::string* value = words_.find(key);
    return value ? *value : "";
  }
  std::optional<uint64_t> unsigned_if_any(std::string_view key) {
    const std::string* value = words_.find(key);
    if (!value) return std::nullopt;
    return need(parse_unsigned(*value));
  }
  template <typename T>
  T need(std::optional<T> value) {
    return value ? *value : lose<T>();
  }

 private:
  template <typename T>
  T lose() {
    is_good_ = false;
    return T{};
  }

  const Words& words_;
  size_t index_ = 0;
  bool is_good_ = true;
};

HelloOk read_hello(Fields& fields) {
  HelloOk hello;
  fields.word();  // HELLO
  const std::string name = fields.word();
  hello.version =
      fields.need(name.starts_with("GLMD/") ? parse_number(name.substr(5)) : std::nullopt);
  hello.state = fields.text("state");
  hello.server = fields.text_or_empty("server");
  hello.line_bytes_max = fields.number_or_0("max_line");
  hello.payload_bytes_max = fields.number_or_0("max_payload");
  return hello;
}

Prefill read_prefill(Fields& fields) {
  Prefill prefill;
  prefill.id = fields.id();
  const std::string share = fields.word();
  const size_t slash = share.find('/');
  prefill.done_tokens = fields.need(parse_number(share.substr(0, slash)));
  prefill.prompt_tokens = fields.need(
      slash == std::string::npos ? std::nullopt
                                 : parse_number(std::string_view(share).substr(slash + 1)));
  return prefill;
}

Done read_done(Fields& fields) {
  Done done;
  done.id = fields.id();
  done.reason = fields.text("reason");
  done.prompt_tokens = fields.number("prompt");
  done.cached_tokens = fields.number("cached");
  done.completion_tokens = fields.number("completion");
  done.seed = fields.unsigned_if_any("seed");
  done.first_token_ms = fields.real_or_0("ttft_ms");
  done.tokens_per_second = fields.real_or_0("tps");
  return done;
}

Failed read_error(Fields& fields) {
  Failed failed;
  const std::string id = fields.word();
  if (id != "-") failed.id = fields.need(parse_id(id));
  failed.code = error_code_from(fields.word());
  failed.retry_ms = fields.number_or_0("retry_ms");
  failed.message = fields.text_or_empty("msg");
  return failed;
}

// Every frame without a payload; nothing for a verb of a later version.
std::optional<Reply> read_short_reply(const Words& words, Fields& fields) {
  if (words.verb == "OK") {
    if (words.positional.empty() || words.positional[0] != "HELLO") return std::nullopt;
    return read_hello(fields);
  }
  if (words.verb == "ACCEPT") {
    const uint64_t id = fields.id();
    return Accept{id, fields.number("slot"), fields.number("prompt"), fields.number("cached")};
  }
  if (words.verb == "QUEUED") {
    const uint64_t id = fields.id();
    return Queued{id, fields.number("pos")};
  }
  if (words.verb == "PREFILL") return read_prefill(fields);
  if (words.verb == "DONE") return read_done(fields);
  if (words.verb == "ERROR") return read_error(fields);
  return std::nullopt;
}

}  // namespace

std::string format_reply(const Reply& reply) {
  return std::visit(Formatter{}, reply);
}

std::optional<ReplyReader::Item> ReplyReader::next() {
  while (!has_failed_) {
    auto item = lines_.next();
    if (!item) return std::nullopt;
    if (auto* fault = std::get_if<Fault>(&*item)) return fail(std::move(fault->message));
    if (auto* line = std::get_if<Line>(&*item)) {
      if (auto result = read_line(line->text)) return result;
      continue;
    }
    auto pending = std::exchange(pending_, std::monostate{});
    std::string payload = std::move(std::get<Payload>(*item).bytes);
    if (auto* data = std::get_if<Data>(&pending)) {
      data->text = std::move(payload);
      return Reply(std::move(*data));
    }
    if (auto* info = std::get_if<Info>(&pending)) {
      info->json = std::move(payload);
      return Reply(std::move(*info));
    }
  }
  return std::nullopt;
}

std::optional<ReplyReader::Item> ReplyReader::read_line(const std::string& text) {
  auto parsed = parse_words(text);
  if (auto* fault = std::get_if<Fault>(&parsed)) return fail(std::move(fault->message));
  const Words& words = std::get<Words>(parsed);
  Fields fields(words);

  std::optional<int64_t> payload_bytes;
  std::optional<Reply> reply;
  if (words.verb == "DATA" || words.verb == "THINK") {
    pending_ = Data{fields.id(), words.verb == "THINK", ""};
    payload_bytes = fields.number();
  } else if (words.verb == "INFO") {
    pending_ = Info{fields.word(), ""};
    payload_bytes = fields.number();
  } else if (words.verb == "TOOL" || words.verb == "LOGPROB") {  // of later versions, skipped whole
    fields.id();
    if (words.verb == "TOOL") fields.number();
    payload_bytes = fields.number();
  } else {
    reply = read_short_reply(words, fields);
  }
  if (!fields.are_good()) return fail("malformed " + words.verb);
  if (payload_bytes) {
    if (*payload_bytes > reply_payload_bytes_max) return fail("a payload too large");
    if (pending_.index() == 0)
      lines_.expect_discard(*payload_bytes);
    else
      lines_.expect_payload(*payload_bytes);
  }
  if (reply) return Item(std::move(*reply));
  return std::nullopt;
}

ReplyReader::Item ReplyReader::fail(std::string message) {
  has_failed_ = true;
  return Fault{ErrorCode::bad_frame, std::nullopt, std::move(message)};
}

}  // namespace glmd::protocol
