#include "generation/session.h"

#include <algorithm>
#include <utility>

#include "platform/check.h"
#include "text/chat_template.h"

namespace glmd {
namespace {

constexpr int64_t silence_max_ns = 500'000'000;  // glmd-protocol(7): PREFILL at least once a second

}  // namespace

Session::Session(SessionOptions options, const SessionContext& context)
    : context_(context),
      options_(std::move(options)),
      tokens_(std::move(options_.prompt.tokens)),
      prompt_tokens_(static_cast<int64_t>(tokens_.size())),
      is_in_thought_(options_.prompt.starts_in_thought),
      matcher_(std::move(options_.stops)),
      submitted_ns_(options_.submitted_ns),
      reported_ns_(context.clock.now_ns()) {
  if (options_.prompt.is_chat && context_.tokenizer != nullptr) {
    think_id_ = context_.tokenizer->find("<think>");
    end_think_id_ = context_.tokenizer->find("</think>");
    for (const std::string_view marker : turn_markers()) {
      const std::optional<int32_t> id = context_.tokenizer->find(marker);
      if (id) turn_ids_.push_back(*id);
    }
  }
}

void Session::report_position(int64_t position) {
  if (position == position_) return;
  position_ = position;
  context_.channel.send(Queued{id(), position});
}

void Session::admit(std::unique_ptr<SequenceState> sequence, int64_t slot) {
  sequence_ = std::move(sequence);
  slot_ = slot;
  tokens_.reserve(static_cast<size_t>(tokens_max()));
  reported_ns_ = context_.clock.now_ns();
  context_.channel.send(Accepted{id(), slot, prompt_tokens_, 0});
}

int64_t Session::pending_rows() const {
  return static_cast<int64_t>(tokens_.size()) - sequence_->length();
}

BatchPart Session::next_part(int64_t rows_max) {
  const int64_t rows = std::min(pending_rows(), rows_max);
  CHECK(rows > 0);
  return {.sequence = sequence_.get(),
          .tokens = std::span(tokens_).subspan(static_cast<size_t>(sequence_->length()),
                                               static_cast<size_t>(rows)),
          .wants_logits = rows == pending_rows()};
}

void Session::report_prefill(int64_t rows, int64_t layers_done, int64_t layers) {
  const int64_t now_ns = context_.clock.now_ns();
  if (!is_prefilling() || now_ns - reported_ns_ < silence_max_ns) return;
  reported_ns_ = now_ns;
  const int64_t done = sequence_->length() + rows * layers_done / layers;
  context_.channel.send(PrefillProgress{id(), done, prompt_tokens_});
}

bool Session::take_token(int32_t token) {
  CHECK(!is_ended_);
  if (is_stop_id(token)) {
    finish("stop");
    return true;
  }
  last_token_ns_ = context_.clock.now_ns();
  if (completion_tokens_ == 0) first_token_ns_ = last_token_ns_;
  tokens_.push_back(token);
  ++completion_tokens_;
  add_text(token);
  if (matcher_.is_stopped()) {
    finish("stop");
  } else if (completion_tokens_ == options_.tokens_max) {
    finish("length");
  }
  return is_ended_;
}

bool Session::is_stop_id(int32_t token) const {
  const auto has_token = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return has_token(context_.stop_ids) || has_token(turn_ids_);
}

void Session::add_text(int32_t token) {
  if (context_.tokenizer == nullptr) {
    release(std::to_string(token) + " ");
  } else if (end_think_id_ == token) {
    end_thought();
  } else if (think_id_ == token && !is_in_thought_) {
    release(assembler_.finish());
    is_in_thought_ = true;
  } else if (!context_.tokenizer->is_special(token)) {
    release(assembler_.push(context_.tokenizer->token_bytes(token)));
  }
}

void Session::end_thought() {
  release(assembler_.finish());
  const bool was_asked_for = std::exchange(is_in_thought_, false);
  // Else it has been sent as answer; what follows stands apart.
  if (!was_asked_for && completion_tokens_ > 1) release("\n");
}

void Session::release(std::string text) {
  if (is_in_thought_) {
    send_text(true, std::move(text));
  } else {
    send_text(false, matcher_.push(text));
  }
}

void Session::send_text(bool is_thought, std::string text) {
  if (!text.empty()) context_.channel.send(Text{id(), is_thought, std::move(text)});
}

void Session::finish(std::string reason) {
  CHECK(!is_ended_);
  release(assembler_.finish());
  send_text(false, matcher_.finish());
  // The assembler's last character may have completed a stop string.
  if (matcher_.is_stopped()) reason = "stop";
  Done done;
  done.id = id();
  done.reason = std::move(reason);
  done.prompt_tokens = prompt_tokens_;
  done.completion_tokens = completion_tokens_;
  done.seed = options_.sampling.seed;
  if (first_token_ns_ > 0) {
    done.first_token_ms = static_cast<double>(first_token_ns_ - submitted_ns_) / 1e6;
  }
  if (last_token_ns_ > first_token_ns_) {
    done.tokens_per_second = static_cast<double>(completion_tokens_ - 1) * 1e9 /
                             static_cast<double>(last_token_ns_ - first_token_ns_);
  }
  is_ended_ = true;
  context_.channel.send(std::move(done));
}

void Session::fail(std::string code, std::string message, int64_t retry_ms) {
  CHECK(!is_ended_);
  is_ended_ = true;
  context_.channel.send(Failed{id(), std::move(code), std::move(message), prompt_tokens_,
                               completion_tokens_, retry_ms});
}

}  // namespace glmd
