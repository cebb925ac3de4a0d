// Where the time of a pass goes, for benches: parts of a layer end with a mark, and the time since
// the mark before counts for that part. Thread: compute.
#pragma once

#include <array>
#include <chrono>

namespace glmd {

enum class StepPart {
  projections,  // of attention
  attention,
  indexer,
  router,
  experts,
  shared_expert,
  dense_mlp,
  head,
  rest,  // norms, rotations, residual sums, embedding
};
constexpr int step_part_count = 9;

class StepTimes {
 public:
  using Seconds = std::array<double, step_part_count>;  // by StepPart

  void end(StepPart part) {
    const auto now = std::chrono::steady_clock::now();
    seconds_[static_cast<size_t>(part)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  // The times since the last call; what comes before the next mark begins now.
  Seconds take() {
    const Seconds taken = seconds_;
    seconds_ = {};
    last_ = std::chrono::steady_clock::now();
    return taken;
  }

 private:
  Seconds seconds_{};
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Nobody measures in production: then `times` is null.
inline void mark(StepTimes* times, StepPart part) {
  if (times != nullptr) times->end(part);
}

}  // namespace glmd
