// One request's life: its tokens, its sequence in the model, the text made so far, and its end.
// Text goes token -> bytes -> whole code points -> stop strings -> client; in a conversation, what
// stands before </think> is thought, in which stop strings are not looked for. Every session ends
// in exactly one Done or Failed. Thread: compute.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generation/channel.h"
#include "generation/prompt.h"
#include "generation/sampler.h"
#include "model/model.h"
#include "platform/clock.h"
#include "text/stop_matcher.h"
#include "text/utf8_assembler.h"

namespace glmd {

struct SessionOptions {
  RequestId id = 0;
  int64_t submitted_ns = 0;
  Prompt prompt;
  SamplingOptions sampling;
  int64_t tokens_max = 0;  // new ones; the context has room for them
  std::vector<std::string> stops;
};

// What all sessions share; outlives them.
struct SessionContext {
  const Tokenizer* tokenizer = nullptr;  // null: text is ids, each followed by a space
  std::vector<int32_t> stop_ids;
  Channel& channel;
  const Clock& clock;
};

class Session {
 public:
  Session(SessionOptions options, const SessionContext& context);

  RequestId id() const { return options_.id; }
  const SamplingOptions& sampling() const { return options_.sampling; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t tokens_max() const { return prompt_tokens_ + options_.tokens_max; }  // of the sequence
  bool is_held() const { return is_held_; }
  void hold(bool is_held) { is_held_ = is_held; }
  // A pass with it failed: it runs by itself once more, and a second failure is its own.
  bool must_run_alone() const { return must_run_alone_; }
  void run_alone() { must_run_alone_ = true; }
  bool is_in_pass() const { return is_in_pass_; }
  void enter_pass() { is_in_pass_ = true; }
  void leave_pass() { is_in_pass_ = false; }

  // In the queue; reported when it changes.
  void report_position(int64_t position);
  void admit(std::unique_ptr<SequenceState> sequence, int64_t slot);
  int64_t slot() const { return slot_; }
  SequenceState& sequence() { return *sequence_; }

  // Tokens the model has not seen: a prompt's rest, or the token sampled last.
  int64_t pending_rows() const;
  bool is_prefilling() const { return completion_tokens_ == 0; }
  BatchPart next_part(int64_t rows_max);
  // PrefillProgress, if nothing was heard of it for a while. `rows` of a pass went through
  // `layers_done` layers.
  void report_prefill(int64_t rows, int64_t layers_done, int64_t layers);
  void passed() { must_run_alone_ = false; }

  // The next token. True: it was the last, and Done is sent.
  bool take_token(int32_t token);
  void stop() { finish("stop"); }
  void fail(std::string code, std::string message, int64_t retry_ms = 0);
  bool is_ended() const { return is_ended_; }

 private:
  bool is_stop_id(int32_t token) const;
  void add_text(int32_t token);
  void end_thought();
  void release(std::string text);
  void send_text(bool is_thought, std::string text);
  void finish(std::string reason);

  const SessionContext& context_;
  SessionOptions options_;
  std::vector<int32_t> tokens_;  // prompt, then what was sampled
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  std::unique_ptr<SequenceState> sequence_;
  int64_t slot_ = -1;
  int64_t position_ = 0;

  bool is_held_ = false;
  bool must_run_alone_ = false;
  bool is_in_pass_ = false;
  bool is_ended_ = false;

  bool is_in_thought_ = false;
  std::optional<int32_t> think_id_, end_think_id_;
  std::vector<int32_t> turn_ids_;  // in a chat
  Utf8Assembler assembler_;
  StopMatcher matcher_;

  int64_t submitted_ns_ = 0, first_token_ns_ = 0, last_token_ns_ = 0, reported_ns_ = 0;
};

}  // namespace glmd
