// Work done by a thread of its own, in the order given, while the caller goes on: the converter
// reads ahead and writes behind with one each. What waits is bounded by the bytes it holds.
// Thread: the caller's, and its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "platform/result.h"

namespace glmd {

class Background {
 public:
  using Work = std::function<Result<void>()>;

  explicit Background(int64_t bytes_max) : bytes_max_(bytes_max), thread_([this] { run(); }) {}
  ~Background();  // drops what has not begun
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Waits while more than bytes_max are held. The first failure ends all work, and every later
  // add() and finish() answers with it.
  Result<void> add(int64_t bytes, Work work);
  // Waits until all work is done.
  Result<void> finish();

 private:
  struct Item {
    int64_t bytes;
    Work work;
  };
  void run();
  Result<void> failure() const;

  const int64_t bytes_max_;
  std::mutex mutex_;
  std::condition_variable has_changed_;
  std::deque<Item> items_;  // under the mutex, as all below; the first is in work
  int64_t bytes_held_ = 0;
  bool is_ending_ = false;
  std::optional<Error> failure_;
  std::thread thread_;
};

}  // namespace glmd
