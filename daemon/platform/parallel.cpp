#include "platform/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "platform/check.h"
#include "platform/sharing_gain.h"

namespace glmd {
namespace {

using std::chrono::steady_clock;

// A task that comes later than this finds its team asleep: between tasks of a step there is less,
// between steps of an idle daemon more.
constexpr int64_t spin_ns = 50'000;
constexpr int64_t parts_per_thread = 32;  // at most
// What its starter does alone in this time is worth sharing with those awake, or waking others for.
constexpr int64_t share_ns = 10'000;
constexpr int64_t wake_ns = 50'000;

int64_t now_ns() {
  return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// False: it took longer than one spins.
template <class Predicate>
bool spin_until(Predicate is_true) {
  const int64_t begin_ns = now_ns();
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_true()) return true;
      pause();
    }
  } while (now_ns() - begin_ns < spin_ns);
  return false;
}

// Sleep for threads that have spun in vain. Whoever makes the predicate true calls wake() after it;
// where nobody sleeps that is one load. Both sides write before they look (sequentially
// consistent), so that one of them sees the other.
class Bed {
 public:
  template <class Predicate>
  void sleep_until(Predicate is_true) {
    std::unique_lock lock(mutex_);
    ++sleepers_;
    wake_.wait(lock, is_true);
    --sleepers_;
  }
  bool is_empty() const { return sleepers_ == 0; }
  void wake() {
    if (is_empty()) return;
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }

 private:
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Where that is not allowed the thread runs wherever it may.
void keep_on(pthread_t thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace

// The gate of a task: its number, whether it is closed, and how many workers are inside. A worker
// enters by itself while the gate is open, and only then looks at the task; its starter closes the
// gate when no part is left and waits for those inside. One that comes late or never is not waited
// for.
constexpr uint64_t closed_bit = uint64_t{1} << 31;
constexpr uint64_t task_number(uint64_t gate) {
  return gate >> 32;
}
constexpr uint64_t workers_inside(uint64_t gate) {
  return gate & (closed_bit - 1);
}

struct Team::Workers {
  ~Workers();  // also where only some of the threads could be made
  void loop(int thread);
  bool stands_in_the_way();
  bool enter();
  void leave();
  bool take_part(int thread);
  void open_gate();
  void wait_for_workers();
  int64_t begin_alone(int64_t begin_ns);
  int64_t remaining_ns(int64_t begin_ns, int64_t done) const;
  void share_parts(int64_t begin_ns);
  void run(Task given, int64_t given_count, int64_t given_grain, int thread_count);

  // Of the task that runs; written while the gate is closed and nobody inside.
  Task task;
  int64_t count = 0, grain = 1, least = 1;
  int participants = 1;
  alignas(64) std::atomic<int64_t> next{0};  // not yet handed out
  alignas(64) std::atomic<uint64_t> gate{closed_bit};
  std::atomic<bool> is_ending{false};
  std::atomic<int> starter_processor{-1};
  bool are_pinned = false;
  cpu_set_t allowed;
  Bed idle, waiting;  // workers without a task; the starter that waits for them
  std::vector<std::thread> threads;

  // Thread: the starter.
  int64_t own_count = 0;  // of the task that runs
  bool was_long = true;   // the last task: the next one is thought to be like it
  SharingGain gain;
};

void Team::Workers::loop(int thread) {
  uint64_t seen = 0;
  while (true) {
    const auto has_news = [&] { return task_number(gate) != seen || is_ending; };
    if (stands_in_the_way() || !spin_until(has_news)) idle.sleep_until(has_news);
    if (is_ending) return;
    seen = task_number(gate);
    if (stands_in_the_way() || !enter()) continue;
    while (take_part(thread)) {
    }
    leave();
  }
}

// A worker on the starter's processor only takes its time, and the scheduler leaves threads that
// run for microseconds where they are: such a worker moves to any other. True where there is none.
bool Team::Workers::stands_in_the_way() {
  const int processor = starter_processor.load(std::memory_order_relaxed);
  if (are_pinned || ::sched_getcpu() != processor) return false;
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  return CPU_COUNT(&others) == 0 ||
         pthread_setaffinity_np(pthread_self(), sizeof others, &others) != 0;
}

bool Team::Workers::enter() {
  uint64_t now = gate;
  while ((now & closed_bit) == 0) {
    if (gate.compare_exchange_weak(now, now + 1)) return true;
  }
  return false;
}

void Team::Workers::leave() {
  const uint64_t before = gate.fetch_sub(1);
  if ((before & closed_bit) != 0 && workers_inside(before) == 1) waiting.wake();
}

// Half of an even share of what is left at a time, never less than `least`. False: none was left.
bool Team::Workers::take_part(int thread) {
  int64_t begin = next.load(std::memory_order_relaxed);
  int64_t end = 0;
  do {
    if (begin >= count) return false;
    const int64_t share = (count - begin) / (2 * participants) / grain * grain;
    end = std::min(count, begin + std::max(share, least));
  } while (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  task(begin, end, thread);
  if (thread == 0) own_count += end - begin;
  return true;
}

void Team::Workers::open_gate() {
  gate = (task_number(gate) + 1) << 32;
}

void Team::Workers::wait_for_workers() {
  const auto are_gone = [&] { return workers_inside(gate) == 0; };
  if (!spin_until(are_gone)) waiting.sleep_until(are_gone);
}

// A task is thought to be like the one before: after a short one its starter begins alone, a little
// and then twice as much each time, until what is left is worth sharing. Returns what is done.
int64_t Team::Workers::begin_alone(int64_t begin_ns) {
  int64_t done = 0;
  for (int64_t part = least; done < count; part *= 2) {
    const int64_t end = std::min(count, done + part);
    task(done, end, 0);
    done = end;
    if (remaining_ns(begin_ns, done) >= share_ns) break;
  }
  return done;
}

// At the rate so far, alone.
int64_t Team::Workers::remaining_ns(int64_t begin_ns, int64_t done) const {
  return static_cast<int64_t>(static_cast<double>(now_ns() - begin_ns) *
                              static_cast<double>(count - done) / static_cast<double>(done));
}

// Sleepers are woken at once where the last task was long, else when what is left is.
void Team::Workers::share_parts(int64_t begin_ns) {
  bool may_wake = !idle.is_empty();
  if (may_wake && was_long) {
    idle.wake();
    may_wake = false;
  }
  while (take_part(0)) {
    if (!may_wake) continue;
    const int64_t done = std::min(next.load(std::memory_order_relaxed), count);
    if (remaining_ns(begin_ns, done) < wake_ns) continue;
    idle.wake();
    may_wake = false;
  }
}

void Team::Workers::run(Task given, int64_t given_count, int64_t given_grain, int thread_count) {
  task = given;
  count = given_count;
  grain = given_grain;
  participants = static_cast<int>(std::min<int64_t>(thread_count, (count + grain - 1) / grain));
  least = std::max(grain, count / (parts_per_thread * participants) / grain * grain);
  starter_processor.store(::sched_getcpu(), std::memory_order_relaxed);
  const int64_t begin_ns = now_ns();
  const int64_t alone = was_long ? 0 : begin_alone(begin_ns);
  own_count = alone;
  if (alone < count) {
    next.store(alone, std::memory_order_relaxed);
    open_gate();
    share_parts(begin_ns);
  }
  const int64_t own_end_ns = now_ns();
  if (workers_inside(gate.fetch_or(closed_bit)) != 0) wait_for_workers();
  const int64_t end_ns = now_ns();
  was_long = end_ns - begin_ns > wake_ns;
  if (own_count == 0 || own_count == count) return;
  const double others_share = 1 - static_cast<double>(own_count) / static_cast<double>(count);
  gain.note(own_end_ns - begin_ns, others_share, end_ns - own_end_ns, end_ns);
}

Team::Workers::~Workers() {
  is_ending = true;
  idle.wake();
  for (std::thread& thread : threads) thread.join();
}

Team::Team(int thread_count, std::span<const int> processors)
    : thread_count_(std::max(1, thread_count)), workers_(std::make_unique<Workers>()) {
  workers_->are_pinned = !processors.empty();
  CPU_ZERO(&workers_->allowed);
  sched_getaffinity(0, sizeof workers_->allowed, &workers_->allowed);
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
  if (thread_count_ > 1 && count > grain && !workers_->gain.is_paused(now_ns())) {
    workers_->run(task, count, grain, thread_count_);
  } else if (count > 0) {
    task(0, count, 0);
  }
}

}  // namespace glmd
