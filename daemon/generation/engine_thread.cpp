#include "generation/engine_thread.h"

#include <utility>

#include "platform/json.h"

namespace glmd {

EngineThread::EngineThread(std::function<Result<LoadedModel>()> load, Channel& channel,
                           const Clock& clock)
    : load_(std::move(load)), channel_(channel), clock_(clock), thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  if (!thread_.joinable()) return;
  channel_.send(Quit{});
  thread_.join();
}

std::optional<Error> EngineThread::join() {
  if (thread_.joinable()) thread_.join();
  return error_;
}

void EngineThread::run() {
  const Json status = Json::object(
      {{"state", Json::string("loading")}, {"status", Json::string("loading weights")}});
  channel_.send(StatusSnapshot{status.to_string()});
  Result<LoadedModel> loaded = load_();
  if (loaded.ok()) {
    run_engine(loaded.value());
  } else {
    error_ = loaded.error();
    refuse_all(*error_);
  }
  channel_.send(EngineStopped{error_ ? error_->message : ""});
}

void EngineThread::run_engine(LoadedModel& loaded) {
  const Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  Engine engine(*loaded.model, tokenizer, std::move(loaded.options), channel_, clock_);
  channel_.send(EngineReady{});
  while (!engine.has_quit()) {
    engine.step();
    if (engine.has_quit() || !engine.is_idle()) continue;
    engine.report_status(true);
    engine.handle(channel_.wait_for_commands());
  }
  engine.report_status(true);
  engine.handle(channel_.take_commands());  // requests that crossed with Quit are refused
}

// Requests that came while the model was loading, which it never will be.
void EngineThread::refuse_all(const Error& cause) {
  for (const Command& command : channel_.take_commands()) {
    const Submit* submit = std::get_if<Submit>(&command);
    if (submit == nullptr) continue;
    channel_.send(Failed{submit->id, "ENGINE", cause.message, 0, 0, 0});
  }
}

}  // namespace glmd
