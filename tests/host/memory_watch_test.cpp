#include "host/memory_watch.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

TEST(MemoryWatch, tells_the_engine_of_a_shortage_once) {
  Channel channel;
  channel.expert_bytes() = 1600;
  const auto read = [] { return MemoryReadings{.rooms = {{"limit", -700, 0}}}; };
  const MemoryWatch watch(ArenaController(100, 1600), read, channel, 1);
  const std::vector<Command> commands = channel.wait_for_commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(std::get<ResizeExperts>(commands[0]).arena_bytes, 900);
}

// 600 of other things and an arena of 1,000, in a limit that holds both.
TEST(MemoryWatch, does_not_take_experts_that_arrive_for_memory_of_others) {
  Channel channel;
  channel.expert_bytes() = 100;
  std::atomic<int> readings{0};
  const auto read = [&] {
    if (readings < 3) channel.expert_bytes() += 300;  // read since the last look, and counted below
    const int64_t anonymous = 600 + channel.expert_bytes();
    if (++readings == 3) readings.notify_one();
    return MemoryReadings{.anonymous_bytes = anonymous, .rooms = {{"plan", 1600 - anonymous, 0}}};
  };
  {
    const MemoryWatch watch(ArenaController(100, 1000, 600), read, channel, 1);
    for (int seen = readings; seen < 3; seen = readings) readings.wait(seen);
  }
  EXPECT_TRUE(channel.take_commands().empty());
}

TEST(MemoryWatch, is_silent_where_there_is_room_and_ends_at_once) {
  Channel channel;
  channel.expert_bytes() = 1600;
  std::atomic<int> readings{0};
  {
    const auto read = [&] {
      ++readings;
      readings.notify_one();
      return MemoryReadings{.rooms = {{"limit", 700, 0}}};
    };
    const MemoryWatch watch(ArenaController(100, 1600), read, channel, 1);
    readings.wait(0);
  }
  const MemoryWatch slow(
      ArenaController(100, 1600), [] { return MemoryReadings(); }, channel, 3'600'000);
  EXPECT_TRUE(channel.take_commands().empty());
}

}  // namespace
}  // namespace glmd
