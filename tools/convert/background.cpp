#include "tools/convert/background.h"

namespace glmd {

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_changed_.notify_all();
  thread_.join();
}

Result<void> Background::failure() const {
  if (failure_) return *failure_;
  return {};
}

Result<void> Background::add(int64_t bytes, Work work) {
  std::unique_lock lock(mutex_);
  has_changed_.wait(lock, [&] { return failure_ || items_.empty() || bytes_held_ <= bytes_max_; });
  TRY(failure());
  items_.push_back({bytes, std::move(work)});
  bytes_held_ += bytes;
  has_changed_.notify_all();
  return {};
}

Result<void> Background::finish() {
  std::unique_lock lock(mutex_);
  has_changed_.wait(lock, [&] { return failure_ || items_.empty(); });
  return failure();
}

void Background::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_changed_.wait(lock, [&] { return is_ending_ || !items_.empty(); });
    if (is_ending_ || failure_) return;
    const Item& item = items_.front();  // stays where it is: others only append
    lock.unlock();
    Result<void> result = item.work();
    lock.lock();
    bytes_held_ -= item.bytes;
    items_.pop_front();
    if (!result.ok()) failure_ = result.error();
    has_changed_.notify_all();
  }
}

}  // namespace glmd
