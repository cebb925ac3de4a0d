// Time as a dependency: programs use the steady clock, tests move a clock by hand.
#pragma once

#include <chrono>
#include <cstdint>

namespace glmd {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;  // monotonic, from an arbitrary start

  double now_ms() const { return static_cast<double>(now_ns()) / 1e6; }
};

class SteadyClock : public Clock {
 public:
  int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// What deadlines count in.
inline int64_t steady_ms() {
  return SteadyClock().now_ns() / 1'000'000;
}

// Thread: one; it is for tests.
class ManualClock : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_; }
  void advance_ms(int64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace glmd
