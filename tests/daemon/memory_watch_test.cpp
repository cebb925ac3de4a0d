#include "memory_watch.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

TEST(MemoryWatch, tells_the_engine_of_a_shortage_once) {
  Channel channel;
  channel.beat(1600);
  const auto read = [] { return MemoryReadings{.rooms = {{"limit", -700, 0}}}; };
  const MemoryWatch watch(ArenaController(100, 1600), read, channel, 1);
  const std::vector<Command> commands = channel.wait_for_commands();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(std::get<ResizeExperts>(commands[0]).arena_bytes, 900);
}

TEST(MemoryWatch, is_silent_where_there_is_room_and_ends_at_once) {
  Channel channel;
  channel.beat(1600);
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
