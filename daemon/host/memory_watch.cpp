#include "host/memory_watch.h"

#include <chrono>
#include <utility>

#include "platform/clock.h"
#include "platform/log.h"

namespace glmd {

MemoryWatch::MemoryWatch(ArenaController controller, Read read, Channel& channel,
                         int64_t interval_ms)
    : controller_(std::move(controller)),
      read_(std::move(read)),
      channel_(channel),
      interval_ms_(interval_ms),
      thread_([this] { run(); }) {}

MemoryWatch::~MemoryWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_ended_.notify_one();
  thread_.join();
}

void MemoryWatch::run() {
  const SteadyClock clock;
  while (wait_for_next()) {
    const int64_t before = controller_.target_bytes();
    MemoryReadings readings = read_();
    // After the memory of the process, in which they are: what was read meanwhile must not look
    // like memory of others, beside which it were still to come.
    readings.expert_bytes = channel_.expert_bytes();
    readings.now_ms = clock.now_ns() / 1'000'000;
    const int64_t target = controller_.update(readings);
    if (target == before) continue;
    log_info("expert arena: {} bytes instead of {}: {}", target, before, controller_.reason());
    channel_.send(Command(ResizeExperts{target}));
  }
}

bool MemoryWatch::wait_for_next() {
  std::unique_lock lock(mutex_);
  return !has_ended_.wait_for(lock, std::chrono::milliseconds(interval_ms_),
                              [&] { return is_ending_; });
}

}  // namespace glmd
