// The thread that loads the model and then runs the engine: a step after the other while there is
// work, asleep on the channel while there is none. While weights arrive, requests wait, and what
// cannot wait (Cancel, Drain, Quit) is obeyed. Its life ends with Quit, or with a model that cannot
// be loaded. Thread: made, asked and joined by the one that owns it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "generation/engine.h"

namespace glmd {

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::optional<Tokenizer> tokenizer;
  EngineOptions options;
};

class EngineThread {
 public:
  // To be called as bytes arrive; its error ends the loading.
  using LoadProgress = std::function<Result<void>(int64_t bytes_done, int64_t bytes_total)>;
  using Load = std::function<Result<LoadedModel>(const LoadProgress& progress)>;

  // `load` runs on the new thread; both references outlive this.
  EngineThread(Load load, Channel& channel, const Clock& clock);
  ~EngineThread();  // sends Quit and joins
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Waits for the end; the error that ended it, if any. Send Quit first.
  std::optional<Error> join();

 private:
  void run();
  void load_and_run();
  Result<void> on_progress(int64_t bytes_done, int64_t bytes_total);
  void report_loading(int64_t bytes_done, int64_t bytes_total);
  void hold_back(Command command);
  void refuse_waiting(std::string_view code, const std::string& message);
  void run_engine(LoadedModel& loaded);

  Load load_;
  Channel& channel_;
  const Clock& clock_;
  std::vector<Command> waiting_;  // for the engine, in order
  bool has_quit_ = false;         // while loading
  int64_t load_began_ns_ = 0, load_reported_ns_ = 0;
  std::optional<Error> error_;  // written before the thread ends, read after join
  std::thread thread_;
};

}  // namespace glmd
