// A compute thread without a model, and a server around it. A prompt is its script:
//   "echo TEXT"  Accepted, the text, Done     "wait"  Accepted, then nothing until Cancel, Stop or
//   Quit "flood"      text for as long as it is not held    "prompt"  the whole prompt, as it came
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "generation/channel.h"
#include "server/server.h"

namespace glmd {

class ScriptedEngine {
 public:
  explicit ScriptedEngine(Channel& channel, bool is_ready = true) : channel_(channel) {
    thread_ = std::thread([this, is_ready] { work(is_ready); });
  }
  ~ScriptedEngine() {
    channel_.send(Quit{});
    thread_.join();
  }

  int cancel_count() const { return cancels_; }
  int hold_count() const { return holds_; }

 private:
  struct Flood {
    bool is_held = false;
  };

  void work(bool is_ready) {
    if (is_ready) channel_.send(EngineReady{});
    channel_.send(StatusSnapshot{R"({"slots":3})"});
    while (!has_quit_) {
      for (Command& command :
           floods_idle() ? channel_.wait_for_commands() : channel_.take_commands()) {
        std::visit([this](auto& value) { handle(value); }, command);
      }
      channel_.beat();
      for (auto& [id, flood] : floods_) {
        if (!flood.is_held) channel_.send(Text{id, false, std::string(10'000, 'x')});
      }
      if (!floods_.empty()) std::this_thread::yield();
    }
    channel_.send(EngineStopped{});
  }

  bool floods_idle() const {
    for (const auto& [id, flood] : floods_) {
      if (!flood.is_held) return false;
    }
    return true;
  }

  void handle(Submit& submit) {
    const std::string script =
        submit.format == PromptFormat::chat ? script_in(submit.prompt) : submit.prompt;
    if (script == "fail") {
      channel_.send(Failed{submit.id, "CONTEXT_EXCEEDED", "too long", 0, 0, 0});
      return;
    }
    channel_.send(Accepted{submit.id, 0, 1, 0});
    if (script == "prompt") {
      channel_.send(Text{submit.id, false, submit.prompt});
      channel_.send(Done{submit.id, "stop", 1, 0, 1, 1, 1, 1});
    } else if (script.starts_with("echo ")) {
      channel_.send(Text{submit.id, true, "hm"});
      channel_.send(Text{submit.id, false, script.substr(5)});
      channel_.send(Done{submit.id, "stop", 1, 0, 1, submit.seed.value_or(1), 1, 1});
    } else if (script == "flood") {
      floods_[submit.id] = {};
    } else {
      channel_.send(Text{submit.id, false, "begun"});
      waits_[submit.id] = true;
    }
  }
  void handle(PromptReady&) {}
  void handle(ResizeExperts&) {}
  void handle(Cancel& cancel) {
    ++cancels_;
    if (waits_.erase(cancel.id) + floods_.erase(cancel.id) > 0) {
      channel_.send(Failed{cancel.id, "CANCELLED", "", 1, 0, 0});
    }
  }
  void handle(Stop& stop) {
    if (waits_.erase(stop.id) + floods_.erase(stop.id) > 0) {
      channel_.send(Done{stop.id, "stop", 1, 0, 1, 1, 1, 1});
    }
  }
  void handle(Hold& hold) {
    if (hold.is_held) ++holds_;
    if (floods_.contains(hold.id)) floods_[hold.id].is_held = hold.is_held;
  }
  void handle(Drain&) {}
  void handle(Quit&) { has_quit_ = true; }

  // The question of glmctl: the last content in the chat object.
  static std::string script_in(const std::string& chat) {
    const std::string key = "\"content\":\"";
    const size_t begin = chat.rfind(key) + key.size();
    return chat.substr(begin, chat.find('"', begin) - begin);
  }

  Channel& channel_;
  std::map<RequestId, bool> waits_;
  std::map<RequestId, Flood> floods_;
  bool has_quit_ = false;
  std::atomic<int> cancels_{0}, holds_{0};
  std::thread thread_;
};

// A server on a socket in a fresh folder, its loop on a thread of its own. Nobody reads its channel
// but the test.
class BareServer {
 public:
  explicit BareServer(ServerOptions options = {}) {
    std::string folder = "/tmp/glmd-test-XXXXXX";
    CHECK(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    options.socket_path = path();
    options.adopt_sockets = false;
    server_ = Server::create(options, channel_).value();
    loop_ = std::thread([this] { result_ = server_->run(); });
  }
  ~BareServer() {
    if (loop_.joinable()) (void)stop();
    server_.reset();
    rmdir(folder_.c_str());
  }

  std::string path() const { return folder_ + "/s"; }
  Server& server() { return *server_; }
  Channel& channel() { return channel_; }
  std::thread& loop() { return loop_; }
  Result<void> join() {
    loop_.join();
    return result_;
  }
  Result<void> stop() {
    server_->request_drain();
    server_->request_drain();
    return join();
  }

 private:
  std::string folder_;
  Channel channel_;
  std::unique_ptr<Server> server_;
  std::thread loop_;
  Result<void> result_;
};

// The same with an engine.
class ServerUnderTest {
 public:
  explicit ServerUnderTest(ServerOptions options = {}, bool is_ready = true)
      : bare_(with_short_ticks(options)), engine_(bare_.channel(), is_ready) {}
  ~ServerUnderTest() {
    if (bare_.loop().joinable()) (void)bare_.stop();
  }

  std::string path() const { return bare_.path(); }
  Server& server() { return bare_.server(); }
  ScriptedEngine& engine() { return engine_; }
  Result<void> join() { return bare_.join(); }

 private:
  static ServerOptions with_short_ticks(ServerOptions options) {
    options.tick_ms = 10;
    return options;
  }

  BareServer bare_;
  ScriptedEngine engine_;  // ends before its channel
};

}  // namespace glmd
