// The team: every index once, for any number of threads; asleep when there is nothing to do.
#include "platform/parallel.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace glmd {
namespace {

TEST(Team, every_index_is_covered_once_and_borders_are_multiples_of_the_grain) {
  for (const int threads : {1, 2, 3, 7}) {
    Team team(threads);
    for (const int64_t grain : {1, 8, 64}) {
      for (const int64_t count : {0, 1, 7, 8, 63, 64, 1000, 4097}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        std::atomic<bool> is_sound{true};
        team.run(count, grain, [&](int64_t begin, int64_t end, int thread) {
          const bool is_good = begin < end && begin % grain == 0 &&
                               (end % grain == 0 || end == count) && thread >= 0 &&
                               thread < threads;
          if (!is_good) is_sound = false;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        EXPECT_TRUE(is_sound) << threads << " threads, grain " << grain << ", count " << count;
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; }))
            << threads << " threads, grain " << grain << ", count " << count;
      }
    }
  }
}

// Each task sees what the one before wrote, whichever threads did it.
TEST(Team, tasks_follow_each_other) {
  Team team(4);
  std::vector<int64_t> values(257, 0);
  for (int64_t round = 0; round < 3000; ++round) {
    const int64_t count = round % 5 == 0 ? 2 : 257;
    team.run(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const auto last = static_cast<size_t>(count - 1 - i);
        if (static_cast<int64_t>(last) > i) std::swap(values[static_cast<size_t>(i)], values[last]);
        ++values[static_cast<size_t>(i)];
      }
    });
  }
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  EXPECT_EQ(sum, 600 * 2 + 2400 * 257);
}

TEST(Team, a_slow_part_does_not_hold_up_the_others) {
  Team team(2);
  std::mutex mutex;
  std::multiset<int> parts;
  std::atomic<bool> others_done{false};
  std::atomic<int64_t> done{0};
  team.run(1000, 1, [&](int64_t begin, int64_t end, int thread) {
    {
      const std::lock_guard lock(mutex);
      parts.insert(thread);
    }
    if (begin == 0) {  // slow: until all the rest is done by the other thread
      while (!others_done) std::this_thread::yield();
      return;
    }
    done += end - begin;
    if (end == 1000) others_done = true;
  });
  EXPECT_GT(done, 700);
  EXPECT_GT(std::max(parts.count(0), parts.count(1)), 10U);
}

TEST(Team, an_idle_team_uses_no_processor_time) {
  Team team(3);
  team.run(100, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than any spinning
  const clock_t before = clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(static_cast<double>(clock() - before) / CLOCKS_PER_SEC, 0.003);
}

TEST(Team, threads_stay_on_the_processors_they_are_given) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> processors;
  for (int index = 0; index < CPU_SETSIZE && processors.size() < 2; ++index) {
    if (CPU_ISSET(index, &allowed)) processors.push_back(index);
  }
  if (processors.size() < 2) GTEST_SKIP() << "one processor";
  std::thread own([&] {  // the team keeps its first thread, which is this one
    Team team(2, processors);
    std::atomic<bool> is_there{true};
    for (int round = 0; round < 100; ++round) {
      team.run(2, 1, [&](int64_t, int64_t, int thread) {
        if (sched_getcpu() != processors[static_cast<size_t>(thread)]) is_there = false;
      });
    }
    EXPECT_TRUE(is_there);
  });
  own.join();
}

}  // namespace
}  // namespace glmd
