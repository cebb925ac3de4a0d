#include "generation/engine_thread.h"

#include <gtest/gtest.h>

#include <semaphore>

#include "tests/support/scripted_model.h"

namespace glmd {
namespace {

// The events of a channel, waited for one by one.
class Listener {
 public:
  explicit Listener(Channel& channel) : channel_(channel) {
    channel_.set_wake_loop([this] { wake_.release(); });
  }
  ~Listener() { channel_.set_wake_loop({}); }

  template <typename T>
  T wait_for() {
    while (true) {
      while (!pending_.empty()) {
        Event event = std::move(pending_.front());
        pending_.pop_front();
        if (T* wanted = std::get_if<T>(&event)) return std::move(*wanted);
      }
      wake_.acquire();
      for (Event& event : channel_.take_events()) pending_.push_back(std::move(event));
    }
  }

 private:
  Channel& channel_;
  std::counting_semaphore<> wake_{0};
  std::deque<Event> pending_;
};

Result<LoadedModel> load_scripted() {
  LoadedModel loaded;
  loaded.model = std::make_unique<ScriptedModel>();
  loaded.options.sessions_max = 2;
  return loaded;
}

TEST(EngineThread, loads_serves_and_quits) {
  Channel channel;
  Listener listener(channel);
  SteadyClock clock;
  EngineThread thread(load_scripted, channel, clock);
  channel.send(
      Command(Submit{.id = 1, .format = PromptFormat::tokens, .prompt = "[1]", .tokens_max = 3}));
  listener.wait_for<EngineReady>();
  EXPECT_EQ(listener.wait_for<Done>().completion_tokens, 3);
  EXPECT_GE(channel.heartbeat(), 12u);
  channel.send(Command(Quit{}));
  EXPECT_EQ(listener.wait_for<EngineStopped>().error, "");
  EXPECT_FALSE(thread.join());
}

TEST(EngineThread, a_model_that_cannot_be_loaded_fails_those_who_waited) {
  Channel channel;
  Listener listener(channel);
  SteadyClock clock;
  channel.send(Command(Submit{.id = 1, .format = PromptFormat::tokens, .prompt = "[1]"}));
  EngineThread thread([]() -> Result<LoadedModel> { return error(ErrorKind::corrupt, "bad hash"); },
                      channel, clock);
  EXPECT_EQ(listener.wait_for<Failed>().code, "ENGINE");
  EXPECT_EQ(listener.wait_for<EngineStopped>().error, "bad hash");
  EXPECT_EQ(thread.join()->kind, ErrorKind::corrupt);
}

TEST(EngineThread, a_running_request_ends_at_quit) {
  Channel channel;
  Listener listener(channel);
  SteadyClock clock;
  EngineThread thread(load_scripted, channel, clock);
  channel.send(Command(Submit{.id = 1, .format = PromptFormat::tokens, .prompt = "[1]"}));
  listener.wait_for<Text>();
  channel.send(Command(Quit{}));
  EXPECT_EQ(listener.wait_for<Failed>().code, "DRAINING");
  listener.wait_for<EngineStopped>();
}

}  // namespace
}  // namespace glmd
