// The compute thread's work, one step at a time: read commands, admit requests, run passes, sample,
// send text. Between any two layers commands are read again, so that a cancelled request is gone
// within one layer; and between the layers of a long prompt the other sessions decode, sharing the
// time about evenly. Thread: compute.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "generation/channel.h"
#include "generation/pass_speed.h"
#include "generation/prompt_thread.h"
#include "generation/read_watch.h"
#include "generation/sampler.h"
#include "generation/scheduler.h"
#include "generation/session.h"
#include "model/model.h"
#include "platform/clock.h"
#include "platform/json.h"
#include "text/tokenizer.h"

namespace glmd {

struct EngineOptions {
  int64_t sessions_max = 1;
  int64_t context_tokens = 0;      // of one session; 0: what the checkpoint was made for
  double temperature_default = 0;  // where a request names none
  double top_p_default = 1;
  std::vector<int32_t> stop_ids;
  Json facts = Json::object();  // members of every status snapshot (memory plan, model)
};

class Engine {
 public:
  // `tokenizer` may be null: then prompts are ids, and so is the text.
  Engine(Model& model, const Tokenizer* tokenizer, EngineOptions options, Channel& channel,
         const Clock& clock);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void handle(std::vector<Command> commands);
  void step();  // commands, one decode pass, one layer of a prefill pass
  bool is_idle() const;
  // While idle: one read of an expert that is likely to be wanted; false where there is none left.
  bool warm_up();  // nothing to do before the next command
  bool has_quit() const { return has_quit_; }
  void report_status(bool is_urgent = false);  // if it changed; at most every 200 ms unless urgent

 private:
  struct PassPart {
    Session* session;  // null: dropped
    int64_t rows;
    bool wants_logits;
  };
  struct Pass {
    PassPtr forward;  // null: none is under way
    std::vector<PassPart> parts;
  };
  struct Totals {
    int64_t requests = 0, completed = 0, failed = 0, cancelled = 0;
    int64_t prompt_tokens = 0, completion_tokens = 0, passes_failed = 0;
  };

  // What was said of a request while its prompt was made into tokens elsewhere.
  struct Preparation {
    int64_t submitted_ns = 0;
    bool is_held = false;
    bool is_stopped = false;
  };

  void handle(Submit& submit);
  void handle(PromptReady& ready);
  void handle(Cancel& cancel);
  void handle(Stop& command);
  void handle(Hold& hold);
  void handle(ResizeExperts& resize);
  void handle(Drain& drain);
  void handle(Quit& quit);
  void refuse(const Submit& submit, std::string code, std::string message,
              int64_t prompt_tokens = 0);
  void stop(Session& session);
  // Queues the session, or refuses it and returns null.
  Session* enqueue(Submit& submit, Result<Prompt> prompt, int64_t submitted_ns);
  void admit_waiting();

  void watch_reads();
  void while_waiting();
  void resize_experts();
  void run_passes();
  void tell_look_ahead();
  void run_decode_pass();
  void run_prefill_layer();
  void begin_pass(Pass& pass);  // of the chosen sessions, if any
  // One layer, then the commands that came. The pass is gone when it failed or nobody is left in
  // it.
  void run_layer(Pass& pass);
  void finish_pass(Pass& pass);
  void retry_alone(const Pass& pass, const Error& cause);
  void take_logits(Session& session, std::span<const float> logits);
  void drop_from(Pass& pass, const Session* session);
  void fail(Session& session, std::string code, std::string message);
  void end(Session& session);  // after its Done or Failed
  Json experts_json() const;
  std::string status_json() const;

  Model& model_;
  const Tokenizer* tokenizer_;
  EngineOptions options_;
  Channel& channel_;
  const Clock& clock_;
  SessionContext context_;
  Sampler sampler_;
  Scheduler scheduler_;
  std::map<RequestId, Preparation> preparations_;
  const int64_t text_bytes_max_;  // a prompt of more is longer than the context
  PromptThread prompt_thread_;
  Pass decode_, prefill_;
  std::vector<Session*> chosen_;  // for the next pass
  std::vector<BatchPart> batch_;  // likewise
  int64_t decode_ns_ = 0;         // of the last decode pass
  int64_t prefill_ns_since_decode_ = 0;
  std::optional<int64_t> arena_wanted_bytes_;  // until the model has it
  std::optional<int64_t> arena_bytes_;         // since it was first resized
  bool is_draining_ = false;
  bool has_quit_ = false;
  Totals totals_;
  PassSpeed pass_speed_;
  ReadWatch read_watch_;
  std::string look_ahead_told_;  // in the log; empty: nothing yet
  int64_t look_ahead_told_ns_ = 0;
  std::string status_;
  int64_t status_sent_ns_ = 0;
};

}  // namespace glmd
