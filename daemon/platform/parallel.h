// The team of threads that does arithmetic: OpenMP, or std::thread where ThreadSanitizer runs.
// Work is split by index, never inside a sum, so the number of threads never changes a bit.
// Thread: only the thread that made the team calls run(); tasks run on all of them. Idle threads
// sleep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace glmd {

class Team {
 public:
  explicit Team(int thread_count);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int thread_count() const { return thread_count_; }

  // Calls task(begin, end, thread) so that [0, count) is covered once, in contiguous parts whose
  // borders are multiples of `grain`. Returns when all are done.
  void run(int64_t count, int64_t grain,
           const std::function<void(int64_t begin, int64_t end, int thread)>& task);

 private:
  struct Workers;
  int thread_count_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace glmd
