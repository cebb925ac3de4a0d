// The team of threads that does arithmetic. Work is split by index, never inside a sum, so the
// number of threads never changes a bit. Parts are handed out as threads ask for them, large ones
// first: neither rows that cost more than others nor a neighbour on the machine make the rest wait.
//
// The thread that starts a task works on it itself, and what it does sooner alone (10 us) stays
// with it. Others take part by taking a part; who has taken none when the last is handed out is not
// waited for. Where sharing loses, since other programs want the processors, it pauses.
//
// A step runs hundreds of tasks, microseconds apart, so threads spin shortly for the next one
// before they sleep; an idle team costs nothing.
// Thread: only the thread that made the team calls run(); tasks run on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/function_ref.h"

namespace glmd {

class Team {
 public:
  // Thread i is kept on processors[i], where given; the first is the calling thread.
  explicit Team(int thread_count, std::span<const int> processors = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int thread_count() const { return thread_count_; }

  // Calls task(begin, end, thread) so that [0, count) is covered once, in parts whose borders are
  // multiples of `grain`; a thread gets any number of them. Returns when all are done. Takes no
  // memory.
  using Task = FunctionRef<void(int64_t begin, int64_t end, int thread)>;
  void run(int64_t count, int64_t grain, Task task);

 private:
  struct Workers;
  int thread_count_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace glmd
