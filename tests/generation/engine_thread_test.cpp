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

Result<LoadedModel> load_scripted(const EngineThread::LoadProgress&) {
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
  const auto load = [](const EngineThread::LoadProgress&) -> Result<LoadedModel> {
    return error(ErrorKind::corrupt, "bad hash");
  };
  EngineThread thread(load, channel, clock);
  EXPECT_EQ(listener.wait_for<Failed>().code, "ENGINE");
  EXPECT_EQ(listener.wait_for<EngineStopped>().error, "bad hash");
  EXPECT_EQ(thread.join()->kind, ErrorKind::corrupt);
}

// Loads for as long as nobody stops it: each piece is released by the test.
class SlowLoad {
 public:
  Result<LoadedModel> operator()(const EngineThread::LoadProgress& progress) {
    for (int64_t done = 0; done < 100; ++done) {
      pieces_.acquire();
      clock_.advance_ms(250);
      TRY(progress(done, 100));
    }
    return load_scripted(progress);
  }
  void release(int count) { pieces_.release(count); }
  const Clock& clock() const { return clock_; }

 private:
  ManualClock clock_;  // moved by the loading thread only
  std::counting_semaphore<> pieces_{0};
};

TEST(EngineThread, loading_beats_and_says_how_far_it_is) {
  Channel channel;
  Listener listener(channel);
  SlowLoad load;
  EngineThread thread(std::ref(load), channel, load.clock());
  load.release(51);
  StatusSnapshot status;
  while (status.json.find("loading weights 50 %") == std::string::npos) {
    status = listener.wait_for<StatusSnapshot>();
  }
  EXPECT_GE(channel.heartbeat(), 51u);
  load.release(49);
  listener.wait_for<EngineReady>();
}

TEST(EngineThread, quit_ends_the_loading_and_those_who_waited) {
  Channel channel;
  Listener listener(channel);
  SlowLoad load;
  channel.send(Command(Submit{.id = 1, .format = PromptFormat::tokens, .prompt = "[1]"}));
  EngineThread thread(std::ref(load), channel, load.clock());
  channel.send(Command(Quit{}));
  load.release(1);
  EXPECT_EQ(listener.wait_for<Failed>().code, "DRAINING");
  EXPECT_EQ(listener.wait_for<EngineStopped>().error, "");
  EXPECT_FALSE(thread.join());
}

TEST(EngineThread, cancel_is_obeyed_while_loading_and_others_are_served_later) {
  Channel channel;
  Listener listener(channel);
  SlowLoad load;
  EngineThread thread(std::ref(load), channel, load.clock());
  for (const RequestId id : {1, 2}) {
    channel.send(Command(
        Submit{.id = id, .format = PromptFormat::tokens, .prompt = "[1]", .tokens_max = 1}));
  }
  channel.send(Command(Cancel{1}));
  load.release(1);
  const Failed failed = listener.wait_for<Failed>();
  EXPECT_EQ(failed.id, 1u);
  EXPECT_EQ(failed.code, "CANCELLED");
  load.release(99);
  EXPECT_EQ(listener.wait_for<Done>().id, 2u);
}

TEST(EngineThread, a_drain_while_loading_refuses_those_who_wait) {
  Channel channel;
  Listener listener(channel);
  SlowLoad load;
  EngineThread thread(std::ref(load), channel, load.clock());
  channel.send(Command(Submit{.id = 1, .format = PromptFormat::tokens, .prompt = "[1]"}));
  channel.send(Command(Drain{}));
  load.release(1);
  EXPECT_EQ(listener.wait_for<Failed>().code, "DRAINING");
  channel.send(Command(Quit{}));
  load.release(1);
  listener.wait_for<EngineStopped>();
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
