#include "platform/parallel.h"

#include <algorithm>

#include "platform/check.h"

#ifdef GLMD_STD_THREAD_TEAM
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#endif

namespace glmd {
namespace {

struct Part {
  int64_t begin, end;
};

Part part_of(int64_t count, int64_t grain, int thread, int thread_count) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t begin = grains * thread / thread_count * grain;
  const int64_t end = grains * (thread + 1) / thread_count * grain;
  return {std::min(begin, count), std::min(end, count)};
}

}  // namespace

#ifdef GLMD_STD_THREAD_TEAM

using Task = std::function<void(int64_t, int64_t, int)>;

struct Team::Workers {
  std::mutex mutex;
  std::condition_variable start, finished;
  const Task* task = nullptr;
  int64_t count = 0, grain = 1;
  uint64_t round = 0;
  int running = 0;
  bool stopping = false;
  std::vector<std::thread> threads;

  void loop(int thread, int thread_count) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stopping || round != seen; });
      if (stopping) return;
      seen = round;
      const Part part = part_of(count, grain, thread, thread_count);
      const Task* now = task;
      lock.unlock();
      if (part.begin < part.end) (*now)(part.begin, part.end, thread);
      lock.lock();
      if (--running == 0) finished.notify_one();
    }
  }
};

Team::Team(int thread_count)
    : thread_count_(std::max(1, thread_count)), workers_(std::make_unique<Workers>()) {
  for (int thread = 1; thread < thread_count_; ++thread) {
    workers_->threads.emplace_back([this, thread] { workers_->loop(thread, thread_count_); });
  }
}

Team::~Team() {
  {
    const std::lock_guard lock(workers_->mutex);
    workers_->stopping = true;
  }
  workers_->start.notify_all();
  for (std::thread& thread : workers_->threads) thread.join();
}

void Team::run(int64_t count, int64_t grain, const Task& task) {
  {
    const std::lock_guard lock(workers_->mutex);
    workers_->task = &task;
    workers_->count = count;
    workers_->grain = grain;
    workers_->running = thread_count_ - 1;
    ++workers_->round;
  }
  workers_->start.notify_all();
  const Part part = part_of(count, grain, 0, thread_count_);
  if (part.begin < part.end) task(part.begin, part.end, 0);
  std::unique_lock lock(workers_->mutex);
  workers_->finished.wait(lock, [&] { return workers_->running == 0; });
}

#else

struct Team::Workers {};

Team::Team(int thread_count) : thread_count_(std::max(1, thread_count)) {}
Team::~Team() = default;

void Team::run(int64_t count, int64_t grain,
               const std::function<void(int64_t, int64_t, int)>& task) {
  DCHECK(grain > 0);
  const int thread_count = static_cast<int>(
      std::min<int64_t>(thread_count_, std::max<int64_t>(1, (count + grain - 1) / grain)));
  if (thread_count == 1) {
    if (count > 0) task(0, count, 0);
    return;
  }
#pragma omp parallel for num_threads(thread_count) schedule(static, 1)
  for (int thread = 0; thread < thread_count; ++thread) {
    const Part part = part_of(count, grain, thread, thread_count);
    if (part.begin < part.end) task(part.begin, part.end, thread);
  }
}

#endif

}  // namespace glmd
