// Where the loop thread and the compute thread meet: two queues of values and a few numbers. The
// only lock between them. Commands are bounded by what the server admits (limits.h), events by what
// sessions may have outstanding; so neither side ever waits for room.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "generation/messages.h"

namespace glmd {

class Channel {
 public:
  // `wake_loop` is called after an event was added to an empty queue (uv_async_send); it must be
  // safe from any thread.
  void set_wake_loop(std::function<void()> wake_loop);

  // Thread: any.
  void send(Command command);
  // The memory that experts take by now: their cache writes it whenever it changes.
  std::atomic<int64_t>& expert_bytes() { return expert_bytes_; }

  // Thread: loop.
  std::vector<Event> take_events();
  uint64_t heartbeat() const { return heartbeat_.load(std::memory_order_relaxed); }
  bool is_idle() const {
    return is_idle_.load(std::memory_order_relaxed);
  }  // compute waits for work

  // Thread: compute.
  std::vector<Command> take_commands();      // never waits
  std::vector<Command> wait_for_commands();  // sleeps until there is one
  void send(Event event);
  void beat() { heartbeat_.fetch_add(1, std::memory_order_relaxed); }  // once a layer

 private:
  std::mutex mutex_;
  std::condition_variable has_commands_;
  std::deque<Command> commands_;
  std::deque<Event> events_;
  std::function<void()> wake_loop_;
  std::atomic<uint64_t> heartbeat_{0};
  std::atomic<int64_t> expert_bytes_{0};
  std::atomic<bool> is_idle_{false};
};

}  // namespace glmd
