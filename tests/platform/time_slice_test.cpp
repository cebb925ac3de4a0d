// A short slice changes nothing else about a thread.
#include "platform/time_slice.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <thread>

namespace glmd {
namespace {

TEST(TimeSlice, asking_for_a_short_one_keeps_policy_and_niceness) {
  std::thread([] {
    ASSERT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 5), 0);
    ask_for_short_time_slice();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
    EXPECT_EQ(::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())), 5);
    timespec slice;
    ASSERT_EQ(::sched_rr_get_interval(0, &slice), 0);
    RecordProperty("slice_ns", static_cast<int>(slice.tv_nsec));
  }).join();
}

}  // namespace
}  // namespace glmd
