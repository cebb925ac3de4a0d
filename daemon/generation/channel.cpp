#include "generation/channel.h"

#include <iterator>
#include <utility>

namespace glmd {
namespace {

template <typename T>
std::vector<T> take_all(std::deque<T>& queue) {
  std::vector<T> taken(std::make_move_iterator(queue.begin()),
                       std::make_move_iterator(queue.end()));
  queue.clear();
  return taken;
}

}  // namespace

void Channel::set_wake_loop(std::function<void()> wake_loop) {
  const std::lock_guard lock(mutex_);
  wake_loop_ = std::move(wake_loop);
}

void Channel::send(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  has_commands_.notify_one();
}

std::vector<Event> Channel::take_events() {
  const std::lock_guard lock(mutex_);
  return take_all(events_);
}

std::vector<Command> Channel::take_commands() {
  const std::lock_guard lock(mutex_);
  return take_all(commands_);
}

std::vector<Command> Channel::wait_for_commands() {
  std::unique_lock lock(mutex_);
  is_idle_.store(true, std::memory_order_relaxed);
  has_commands_.wait(lock, [&] { return !commands_.empty(); });
  is_idle_.store(false, std::memory_order_relaxed);
  return take_all(commands_);
}

void Channel::send(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  // Under the lock, so that set_wake_loop({}) ends all calls before the loop goes away.
  if (events_.size() == 1 && wake_loop_) wake_loop_();
}

}  // namespace glmd
