#include "platform/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "platform/check.h"

namespace glmd {
namespace {

// A task that comes later than this finds its team asleep: between tasks of a step there is less,
// between steps of an idle daemon more.
constexpr std::chrono::microseconds spin_time{50};
constexpr int64_t parts_per_thread = 32;  // at most

// The word that starts a task: its number, and how many threads take part; none ends the team.
constexpr uint32_t participant_bits = 12;
constexpr uint32_t participants_of(uint32_t round) {
  return round & ((1U << participant_bits) - 1);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns the new value of `word`, once it is no longer `old`.
uint32_t wait_for_change(const std::atomic<uint32_t>& word, uint32_t old) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      const uint32_t now = word.load(std::memory_order_acquire);
      if (now != old) return now;
      pause();
    }
  } while (std::chrono::steady_clock::now() - begin < spin_time);
  while (true) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != old) return now;
    word.wait(old, std::memory_order_acquire);
  }
}

// Where that is not allowed the thread runs wherever it may.
void keep_on(pthread_t thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace

struct Team::Workers {
  ~Workers();  // also where only some of the threads could be made
  void loop(int thread);
  void take_parts(int thread);
  void start(int thread_count);

  // Of the task that runs; written before `round` moves on.
  Task task;
  int64_t count = 0, grain = 1, least = 1;
  int participants = 1;
  alignas(64) std::atomic<int64_t> next{0};  // not yet handed out
  alignas(64) std::atomic<uint32_t> round{0};
  alignas(64) std::atomic<uint32_t> running{0};  // workers that are not done with this task
  std::vector<std::thread> threads;
};

void Team::Workers::loop(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = wait_for_change(round, seen);
    if (participants_of(seen) == 0) return;
    if (static_cast<uint32_t>(thread) >= participants_of(seen)) continue;
    take_parts(thread);
    if (running.fetch_sub(1, std::memory_order_seq_cst) == 1) running.notify_one();
  }
}

// Half of an even share of what is left at a time, never less than `least`.
void Team::Workers::take_parts(int thread) {
  int64_t begin = next.load(std::memory_order_relaxed);
  while (begin < count) {
    const int64_t share = (count - begin) / (2 * participants) / grain * grain;
    const int64_t end = std::min(count, begin + std::max(share, least));
    if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
    task(begin, end, thread);
    begin = next.load(std::memory_order_relaxed);
  }
}

// All workers see the new word; those that do not take part never look at the task. notify_all()
// of libstdc++ 12 looks for waiters with a load that a mere store may be overtaken by, and a worker
// that falls asleep just then would sleep for ever: hence an exchange, which nothing overtakes.
void Team::Workers::start(int thread_count) {
  const uint32_t number = (round.load(std::memory_order_relaxed) >> participant_bits) + 1;
  round.exchange(number << participant_bits | static_cast<uint32_t>(thread_count),
                 std::memory_order_seq_cst);
  round.notify_all();
}

Team::Workers::~Workers() {
  start(0);
  for (std::thread& thread : threads) thread.join();
}

Team::Team(int thread_count, std::span<const int> processors)
    : thread_count_(std::max(1, thread_count)), workers_(std::make_unique<Workers>()) {
  CHECK(thread_count_ < 1 << participant_bits);
  CHECK(processors.empty() || static_cast<int>(processors.size()) >= thread_count_);
  for (int thread = 1; thread < thread_count_; ++thread) {
    workers_->threads.emplace_back([workers = workers_.get(), thread] { workers->loop(thread); });
    if (!processors.empty()) {
      keep_on(workers_->threads.back().native_handle(), processors[static_cast<size_t>(thread)]);
    }
  }
  if (!processors.empty()) keep_on(pthread_self(), processors[0]);
}

Team::~Team() = default;

void Team::run(int64_t count, int64_t grain, Task task) {
  DCHECK(grain > 0);
  if (thread_count_ == 1 || count <= grain) {
    if (count > 0) task(0, count, 0);
    return;
  }
  Workers& workers = *workers_;
  workers.task = task;
  workers.count = count;
  workers.grain = grain;
  workers.participants =
      static_cast<int>(std::min<int64_t>(thread_count_, (count + grain - 1) / grain));
  workers.least =
      std::max(grain, count / (parts_per_thread * workers.participants) / grain * grain);
  workers.next.store(0, std::memory_order_relaxed);
  workers.running.store(static_cast<uint32_t>(workers.participants - 1), std::memory_order_relaxed);
  workers.start(workers.participants);
  workers.take_parts(0);
  uint32_t running = workers.running.load(std::memory_order_acquire);
  while (running != 0) running = wait_for_change(workers.running, running);
}

}  // namespace glmd
