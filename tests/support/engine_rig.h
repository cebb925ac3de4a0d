// An engine on a scripted model, driven step by step, and what its clients received.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "generation/engine.h"
#include "tests/support/scripted_model.h"

namespace glmd {

struct Received {
  int64_t accepted = 0, ends = 0;
  std::vector<int64_t> positions;
  std::vector<int64_t> progress;
  std::string thought, answer;
  std::optional<Done> done;
  std::optional<Failed> failed;
};

class EngineRig {
 public:
  explicit EngineRig(EngineOptions options = {.sessions_max = 4},
                     ScriptedModel::Options model_options = {},
                     const Tokenizer* tokenizer = nullptr)
      : model(model_options), engine(model, tokenizer, std::move(options), channel, clock) {}

  void submit(RequestId id, std::string tokens, int64_t tokens_max = 8) {
    submit({.id = id,
            .format = PromptFormat::tokens,
            .prompt = std::move(tokens),
            .tokens_max = tokens_max,
            .temperature = 1.0,
            .seed = id});
  }
  void submit(Submit command) { channel.send(Command(std::move(command))); }

  void step() {
    engine.step();
    read_events();
  }
  // Until nothing is left to do before another command.
  void run() {
    do {
      step();
      CHECK(++steps_ < 1'000'000);
    } while (!engine.is_idle());
  }

  void read_events() {
    for (Event& event : channel.take_events()) {
      std::visit([this](auto& value) { read(value); }, event);
    }
  }
  Received& operator[](RequestId id) { return received[id]; }

  ManualClock clock;
  Channel channel;
  ScriptedModel model;
  Engine engine;
  std::map<RequestId, Received> received;
  std::vector<std::string> statuses;

 private:
  void read(const Queued& event) { received[event.id].positions.push_back(event.position); }
  void read(const Accepted& event) { ++received[event.id].accepted; }
  void read(const PrefillProgress& event) {
    received[event.id].progress.push_back(event.done_tokens);
  }
  void read(const Text& event) {
    Received& request = received[event.id];
    CHECK(request.ends == 0 || request.failed->code == "DUPLICATE_ID");
    (event.is_thought ? request.thought : request.answer) += event.text;
  }
  void read(const Done& event) {
    ++received[event.id].ends;
    received[event.id].done = event;
  }
  void read(const Failed& event) {
    ++received[event.id].ends;
    received[event.id].failed = event;
  }
  void read(const StatusSnapshot& event) { statuses.push_back(event.json); }
  void read(const EngineReady&) {}
  void read(const EngineStopped&) {}

  int64_t steps_ = 0;
};

// A JSON array of `count` ids that starts with `first`.
inline std::string tokens_json(int64_t count, int64_t first = 1) {
  std::string text = "[" + std::to_string(first);
  for (int64_t index = 1; index < count; ++index) text += "," + std::to_string(index % 50);
  return text + "]";
}

}  // namespace glmd
