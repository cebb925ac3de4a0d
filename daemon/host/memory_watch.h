// Once a second: reads what memory is left, asks the controller, and tells the engine where the
// arena of experts should be of another size. Thread: its own; made and destroyed by main.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "generation/channel.h"
#include "host/arena_controller.h"

namespace glmd {

class MemoryWatch {
 public:
  using Read = std::function<MemoryReadings()>;

  // `read` runs on the watch's thread; the channel outlives this.
  MemoryWatch(ArenaController controller, Read read, Channel& channel, int64_t interval_ms = 1'000);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

 private:
  void run();
  bool wait_for_next();  // false: the end

  ArenaController controller_;
  Read read_;
  Channel& channel_;
  int64_t interval_ms_;
  std::mutex mutex_;
  std::condition_variable has_ended_;
  bool is_ending_ = false;  // under the mutex
  std::thread thread_;
};

}  // namespace glmd
