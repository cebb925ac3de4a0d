#include "tools/convert/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace glmd {
namespace {

TEST(Background, work_is_done_in_order_and_finish_waits_for_it) {
  Background background(100);
  std::vector<int> done;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(background
                    .add(1,
                         [&done, i]() -> Result<void> {
                           done.push_back(i);
                           return {};
                         })
                    .ok());
  }
  ASSERT_TRUE(background.finish().ok());
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

TEST(Background, the_first_failure_ends_all_work_and_is_what_everybody_hears) {
  Background background(1000);
  bool is_later_done = false;
  std::promise<void> may_fail;
  ASSERT_TRUE(background
                  .add(1,
                       [&]() -> Result<void> {
                         may_fail.get_future().wait();
                         return error(ErrorKind::io, "the disk is full");
                       })
                  .ok());
  ASSERT_TRUE(background
                  .add(1,
                       [&]() -> Result<void> {
                         is_later_done = true;
                         return {};
                       })
                  .ok());
  may_fail.set_value();
  const Result<void> finished = background.finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().message, "the disk is full");
  const Result<void> added = background.add(1, []() -> Result<void> { return {}; });
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().message, "the disk is full");
  EXPECT_FALSE(is_later_done);
}

TEST(Background, add_waits_while_more_bytes_are_held_than_allowed) {
  Background background(10);
  std::promise<void> may_end, is_adding;
  std::atomic<bool> is_added = false;
  bool was_added_early = true;
  ASSERT_TRUE(background
                  .add(11,  // alone, an item may be larger
                       [&]() -> Result<void> {
                         may_end.get_future().wait();
                         was_added_early = is_added;
                         return {};
                       })
                  .ok());
  const auto second = std::async(std::launch::async, [&] {
    is_adding.set_value();
    ASSERT_TRUE(background.add(1, []() -> Result<void> { return {}; }).ok());
    is_added = true;
  });
  is_adding.get_future().wait();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  may_end.set_value();
  second.wait();
  ASSERT_TRUE(background.finish().ok());
  EXPECT_FALSE(was_added_early);
}

}  // namespace
}  // namespace glmd
