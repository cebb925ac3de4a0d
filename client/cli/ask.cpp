#include "client/cli/ask.h"

#include <cmath>

#include "client/cli/status.h"
#include "client/daemon_client.h"
#include "platform/clock.h"
#include "platform/file.h"
#include "platform/json.h"
#include "protocol/limits.h"
#include "protocol/quoting.h"

namespace glmd {
namespace {

constexpr int64_t input_bytes_max = 8 * protocol::mebibyte;
constexpr int64_t cancel_limit_ms = 1'000;  // then closing the connection has to do
constexpr uint64_t request_id = 1;

void append_part(std::string& text, const std::string& part) {
  if (part.empty()) return;
  if (!text.empty()) text += "\n\n";
  text += part;
}

// Words, then stdin where one is piped in, then files: the question before its material.
Result<std::string> read_question(const AskOptions& options, std::optional<int64_t> deadline_ms) {
  std::string words;
  bool wants_stdin = is_stdin_piped();
  for (const std::string& word : options.prompt) {
    if (word == "-") {
      wants_stdin = true;
      continue;
    }
    if (!words.empty()) words += ' ';
    words += word;
  }
  std::string question = std::move(words);
  if (wants_stdin) append_part(question, TRY(read_standard_input(input_bytes_max, deadline_ms)));
  for (const std::string& path : options.files) {
    append_part(question, TRY(read_input(path, input_bytes_max, deadline_ms)));
  }
  if (question.empty()) return error(ErrorKind::usage, "no prompt: give words, -f FILE or stdin");
  return question;
}

Result<void> check_utf8(const std::string& text, std::string_view what) {
  if (const auto index = protocol::find_invalid_utf8(text)) {
    return error(ErrorKind::bad_input, "{} is not UTF-8 at byte {}", what, *index);
  }
  return {};
}

// What one line of SUBMIT holds, quoted, beside the rest of it.
Result<void> check_stops(const protocol::Submit& submit) {
  if (std::ssize(submit.stops) > protocol::stop_count_max) {
    return error(ErrorKind::usage, "--stop: wanted at most {} texts, got {}",
                 protocol::stop_count_max, submit.stops.size());
  }
  for (const std::string& stop : submit.stops) {
    if (stop.empty()) return error(ErrorKind::usage, "--stop: wanted a text, got none");
    TRY(check_utf8(stop, "--stop"));
  }
  protocol::Submit line = submit;
  line.payload.clear();
  const int64_t digits_max = std::ssize(std::to_string(input_bytes_max));  // of its length
  const int64_t line_bytes = std::ssize(protocol::format_request(line)) + digits_max;
  if (line_bytes > protocol::line_bytes_max) {
    return error(ErrorKind::usage, "--stop: the texts are {} bytes too long together",
                 line_bytes - protocol::line_bytes_max);
  }
  return {};
}

Json message_of(const char* role, const std::string& content) {
  return Json::object({{"role", Json::string(role)}, {"content", Json::string(content)}});
}

Result<std::string> make_chat(const AskOptions& options, std::optional<int64_t> deadline_ms) {
  const std::string question = TRY(read_question(options, deadline_ms));
  TRY(check_utf8(question, "the prompt"));
  TRY(check_utf8(options.system, "the system prompt"));
  Json messages = Json::array();
  if (!options.system.empty()) messages.items().push_back(message_of("system", options.system));
  messages.items().push_back(message_of("user", question));
  Json template_options = Json::object({{"add_generation_prompt", Json::boolean(true)}});
  if (options.is_thinking)
    template_options.set("enable_thinking", Json::boolean(*options.is_thinking));
  if (!options.effort.empty())
    template_options.set("reasoning_effort", Json::string(options.effort));
  Json chat = Json::object();
  chat.set("messages", std::move(messages));
  chat.set("options", std::move(template_options));
  return chat.to_string();
}

Json usage_of(const protocol::Done& done) {
  return Json::object({{"prompt_tokens", Json::integer(done.prompt_tokens)},
                       {"cached_tokens", Json::integer(done.cached_tokens)},
                       {"completion_tokens", Json::integer(done.completion_tokens)},
                       {"first_token_ms", Json::real(done.first_token_ms)},
                       {"tokens_per_second", Json::real(done.tokens_per_second)}});
}

// Collects the answer and, unless JSON is wanted, shows it as it comes.
class Answer {
 public:
  Answer(const AskOptions& options, bool shows_thoughts)
      : is_json_(options.is_json),
        shows_thoughts_(shows_thoughts),
        is_dim_(has_color(options.color)) {}

  Result<void> add(const protocol::Data& data) {
    if (data.text.empty()) return {};
    std::string& target = data.is_thought ? thought_ : text_;
    if (is_json_) {
      target += data.text;
      return {};
    }
    target = data.text.back();  // only its last byte matters from here on
    if (data.is_thought) {
      if (shows_thoughts_) write_thought(data.text, is_dim_);
      return {};
    }
    if (shows_thoughts_ && !thought_.empty() && !has_begun_) write_thought("\n", is_dim_);
    has_begun_ = true;
    return write_answer(data.text);
  }

  // The answer ends its last line, whatever way it ended.
  Result<void> finish() {
    if (is_json_ || text_.empty() || text_.back() == '\n') return {};
    return write_answer("\n");
  }

  // Whatever way it ended: one object, where JSON is wanted. Without Done, there are no counts.
  Result<void> print_json(std::string_view reason, const protocol::Done* done,
                          const std::string& error = {}) {
    if (!is_json_) return {};
    std::string line = "{\"answer\":";
    append_json_string(line, text_);
    line += ",\"thought\":";
    append_json_string(line, thought_);
    line += ",\"reason\":";
    append_json_string(line, reason);
    if (!error.empty()) {
      line += ",\"error\":";
      append_json_string(line, error);
    }
    line += ",\"usage\":" + (done ? usage_of(*done).to_string() : std::string("null"));
    // Seeds have 64 bits without a sign, more than Json::integer writes.
    const std::optional<uint64_t> seed = done ? done->seed : std::nullopt;
    line += ",\"seed\":" + (seed ? std::to_string(*seed) : std::string("null")) + "}\n";
    return write_answer(line);
  }

 private:
  bool is_json_, shows_thoughts_, is_dim_;
  bool has_begun_ = false;
  std::string text_, thought_;
};

// What ended the wait for the answer before its time.
enum class Interruption { none, signal, timeout };

struct Conversation {
  const AskOptions& options;
  DaemonClient client;
  Answer& answer;
  std::optional<int64_t> deadline_ms;
  Interruption interruption = Interruption::none;

  // The exit code.
  Result<int> hold(const protocol::Submit& submit) {
    const bool is_sent = TRY(client.send(submit, deadline_ms));
    if (!is_sent) {
      const bool is_late = deadline_ms && steady_ms() >= *deadline_ms;
      interruption = is_late ? Interruption::timeout : Interruption::signal;
      return end_interrupted();
    }
    while (true) {
      const bool gives_up = TRY(interrupt());
      if (gives_up) return end_interrupted();
      const auto reply = TRY(client.receive(deadline_ms));
      if (!reply) continue;
      const auto code = TRY(take(*reply));
      if (code) return *code;
    }
  }

  // Asks glmd to cancel once; a second interrupt or silence ends the wait. True: give up.
  Result<bool> interrupt() {
    const bool is_signal = interrupt_count() > 0;
    const bool is_late = deadline_ms && steady_ms() >= *deadline_ms;
    if (interruption != Interruption::none) return is_late || interrupt_count() > 1;
    if (!is_signal && !is_late) return false;
    interruption = is_signal ? Interruption::signal : Interruption::timeout;
    deadline_ms = steady_ms() + cancel_limit_ms;
    const bool is_sent = TRY(client.send(protocol::Cancel{request_id}, deadline_ms));
    return !is_sent;
  }

  // What came so far is all there will be; the exit code.
  Result<int> end_interrupted() {
    if (interruption == Interruption::timeout) {
      return error(ErrorKind::timeout, "no complete answer within {} s from {}", *options.timeout_s,
                   options.socket_path);
    }
    TRY(answer.finish());
    TRY(answer.print_json("interrupted", nullptr));
    return exit_interrupted;
  }

  // The exit code once the request ended, nothing before.
  Result<std::optional<int>> take(const protocol::Reply& reply) {
    if (const auto* data = std::get_if<protocol::Data>(&reply)) {
      TRY(answer.add(*data));
    } else if (const auto* done = std::get_if<protocol::Done>(&reply)) {
      TRY(answer.finish());
      TRY(answer.print_json(done->reason, done));
      return std::optional(0);
    } else if (const auto* failed = std::get_if<protocol::Failed>(&reply)) {
      if (interruption != Interruption::none) return std::optional(TRY(end_interrupted()));
      return error_of(*failed);
    }
    return std::optional<int>();
  }
};

Result<int> converse(const AskOptions& options, Answer& answer) {
  std::optional<int64_t> deadline_ms;
  if (options.timeout_s) {
    deadline_ms = steady_ms() + static_cast<int64_t>(std::ceil(*options.timeout_s * 1000));
  }
  protocol::Submit submit;
  submit.id = request_id;
  submit.format = protocol::Format::chat;
  submit.payload = TRY(make_chat(options, deadline_ms));
  submit.tokens_max = options.tokens_max;
  submit.temperature = options.temperature;
  submit.top_p = options.top_p;
  submit.seed = options.seed;
  submit.stops = options.stops;
  TRY(check_stops(submit));
  if (std::ssize(submit.payload) > input_bytes_max) {
    return error(ErrorKind::bad_input, "the prompt: wanted at most {} bytes as JSON, got {}",
                 input_bytes_max, submit.payload.size());
  }
  Conversation conversation{options, TRY(DaemonClient::connect(options.socket_path)), answer,
                            deadline_ms};
  count_interrupts();  // before this there is nothing to cancel
  return conversation.hold(submit);
}

}  // namespace

Result<int> ask(const AskOptions& options) {
  const bool shows_thoughts =
      !options.is_quiet && (options.is_thinking.value_or(false) || is_stderr_terminal());
  Answer answer(options, shows_thoughts);
  Result<int> code = converse(options, answer);
  if (code.ok() || code.error().kind == ErrorKind::usage) return code;
  TRY(answer.finish());
  if (code.error().kind == ErrorKind::timeout) {
    TRY(answer.print_json("timeout", nullptr));
  } else {
    TRY(answer.print_json("error", nullptr, code.error().message));
  }
  return code;
}

}  // namespace glmd
