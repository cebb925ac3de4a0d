// The thread that loads the model and then runs the engine: a step after the other while there is
// work, asleep on the channel while there is none. Its life ends with Quit, or with a model that
// cannot be loaded. Thread: made, asked and joined by the one that owns it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "generation/engine.h"

namespace glmd {

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::optional<Tokenizer> tokenizer;
  EngineOptions options;
};

class EngineThread {
 public:
  // `load` runs on the new thread; both references outlive this.
  EngineThread(std::function<Result<LoadedModel>()> load, Channel& channel, const Clock& clock);
  ~EngineThread();  // sends Quit and joins
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Waits for the end; the error that ended it, if any. Send Quit first.
  std::optional<Error> join();

 private:
  void run();
  void run_engine(LoadedModel& loaded);
  void refuse_all(const Error& cause);

  std::function<Result<LoadedModel>()> load_;
  Channel& channel_;
  const Clock& clock_;
  std::optional<Error> error_;  // written before the thread ends, read after join
  std::thread thread_;
};

}  // namespace glmd
