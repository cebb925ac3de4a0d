#include "generation/engine_thread.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "platform/json.h"
#include "platform/shortage.h"

namespace glmd {
namespace {

constexpr int64_t load_report_interval_ns = 200'000'000;

}  // namespace

EngineThread::EngineThread(Load load, Channel& channel, const Clock& clock)
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

// That there is no room for another thread ends here, so that requests are told.
void EngineThread::run() {
  try {
    load_and_run();
  } catch (const std::system_error&) {
    error_ = caught_shortage();
    if (!error_) throw;
  }
  channel_.send(EngineStopped{error_ ? error_->message : ""});
}

void EngineThread::load_and_run() {
  load_began_ns_ = clock_.now_ns();
  const Json status = Json::object(
      {{"state", Json::string("loading")}, {"status", Json::string("loading weights")}});
  channel_.send(StatusSnapshot{status.to_string()});
  Result<LoadedModel> loaded =
      load_([this](int64_t done, int64_t total) { return on_progress(done, total); });
  if (loaded.ok()) {
    run_engine(loaded.value());
  } else {
    if (!has_quit_) error_ = loaded.error();
    for (Command& command : channel_.take_commands()) hold_back(std::move(command));
    refuse_waiting(has_quit_ ? "DRAINING" : "ENGINE", loaded.error().message);
  }
}

Result<void> EngineThread::on_progress(int64_t bytes_done, int64_t bytes_total) {
  channel_.beat();
  report_loading(bytes_done, bytes_total);
  for (Command& command : channel_.take_commands()) hold_back(std::move(command));
  if (has_quit_) return error(ErrorKind::cancelled, "the daemon stops");
  return {};
}

void EngineThread::report_loading(int64_t bytes_done, int64_t bytes_total) {
  const int64_t now_ns = clock_.now_ns();
  if (now_ns - load_reported_ns_ < load_report_interval_ns) return;
  load_reported_ns_ = now_ns;
  const double done = static_cast<double>(bytes_done), total = static_cast<double>(bytes_total);
  const double seconds = static_cast<double>(now_ns - load_began_ns_) / 1e9;
  const std::string line =
      fmt::format("loading weights {:.0f} % ({:.1f} of {:.1f} GB, {:.0f} MB/s)",
                  total > 0 ? 100 * done / total : 100.0, done / 1e9, total / 1e9,
                  seconds > 0 ? done / 1e6 / seconds : 0.0);
  const Json status = Json::object({{"state", Json::string("loading")},
                                    {"status", Json::string(line)},
                                    {"bytes_done", Json::integer(bytes_done)},
                                    {"bytes_total", Json::integer(bytes_total)}});
  channel_.send(StatusSnapshot{status.to_string()});
}

// Most commands wait for the engine, in order.
void EngineThread::hold_back(Command command) {
  if (std::holds_alternative<Quit>(command)) {
    has_quit_ = true;
  } else if (std::holds_alternative<Drain>(command)) {
    refuse_waiting("DRAINING", "the daemon stops");
  } else if (const auto* cancel = std::get_if<Cancel>(&command)) {
    const auto is_cancelled = [&](const Command& other) {
      const auto* submit = std::get_if<Submit>(&other);
      return submit != nullptr && submit->id == cancel->id;
    };
    if (std::erase_if(waiting_, is_cancelled) > 0) {
      channel_.send(Failed{cancel->id, "CANCELLED", "cancelled while loading", 0, 0, 0});
    }
    return;
  }
  waiting_.push_back(std::move(command));
}

void EngineThread::refuse_waiting(std::string_view code, const std::string& message) {
  for (const Command& command : std::exchange(waiting_, {})) {
    const auto* submit = std::get_if<Submit>(&command);
    if (submit == nullptr) continue;
    channel_.send(Failed{submit->id, std::string(code), message, 0, 0, 0});
  }
}

void EngineThread::run_engine(LoadedModel& loaded) {
  const Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  Engine engine(*loaded.model, tokenizer, std::move(loaded.options), channel_, clock_);
  channel_.send(EngineReady{});
  engine.handle(std::exchange(waiting_, {}));
  while (!engine.has_quit()) {
    engine.step();
    if (engine.has_quit() || !engine.is_idle() || engine.warm_up()) continue;
    engine.report_status(true);
    engine.handle(channel_.wait_for_commands());
  }
  engine.report_status(true);
  engine.handle(channel_.take_commands());  // requests that crossed with Quit are refused
}

}  // namespace glmd
