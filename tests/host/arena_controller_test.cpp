#include "host/arena_controller.h"

#include <gtest/gtest.h>

#include <random>

namespace glmd {
namespace {

constexpr int64_t floor_bytes = 100, plan_bytes = 1600, step = 100;

// A machine with one limit whose free bytes follow the arena, which is full, second by second.
class Machine {
 public:
  // The limit leaves `others_free` bytes beside a whole arena.
  explicit Machine(int64_t others_free) : others_free_(others_free) {}

  void set_others_free(int64_t bytes) { others_free_ = bytes; }
  void set_pressure(double some, double full) {
    some_ = some;
    full_ = full;
  }
  int64_t run(int64_t seconds) {
    for (int64_t i = 0; i < seconds; ++i) {
      now_ms_ += 1000;
      const int64_t free_bytes = others_free_ + plan_bytes - controller_.target_bytes();
      controller_.update({.now_ms = now_ms_,
                          .some_percent = some_,
                          .full_percent = full_,
                          .expert_bytes = controller_.target_bytes(),
                          .rooms = {{"limit", free_bytes, 20}}});
    }
    return controller_.target_bytes();
  }
  const ArenaController& controller() const { return controller_; }

 private:
  ArenaController controller_{floor_bytes, plan_bytes};
  int64_t others_free_;
  int64_t now_ms_ = 0;
  double some_ = 0, full_ = 0;
};

TEST(ArenaController, with_room_the_plan_is_kept) {
  Machine machine(50);
  EXPECT_EQ(machine.run(1000), plan_bytes);
}

TEST(ArenaController, a_shortage_takes_what_is_missing_at_once) {
  Machine machine(50);
  machine.run(10);
  machine.set_others_free(-700);
  EXPECT_EQ(machine.run(1), plan_bytes - 720);
  EXPECT_EQ(machine.controller().reason(), "limit: -700 bytes are left");
  EXPECT_EQ(machine.run(1000), plan_bytes - 720) << "and that was enough";
}

TEST(ArenaController, a_small_shortage_takes_a_whole_step_and_never_swings) {
  Machine machine(50);
  machine.run(10);
  machine.set_others_free(19);
  EXPECT_EQ(machine.run(1), plan_bytes - step);
  int64_t changes = 0, last = plan_bytes - step;
  for (int i = 0; i < 1000; ++i) {
    const int64_t target = machine.run(1);
    EXPECT_GE(target, last) << "a grown arena never has to shrink again by itself";
    if (target != last) ++changes;
    last = target;
  }
  EXPECT_LE(changes, 4);
}

TEST(ArenaController, what_the_engine_has_not_given_back_yet_is_not_taken_again) {
  ArenaController controller(floor_bytes, plan_bytes);
  MemoryReadings readings{.expert_bytes = plan_bytes, .rooms = {{"limit", -700, 20}}};
  for (readings.now_ms = 1; readings.now_ms < 100'000; readings.now_ms += 1000) {
    EXPECT_EQ(controller.update(readings), plan_bytes - 720);
  }
  readings.rooms[0].free_bytes = -800;
  EXPECT_EQ(controller.update(readings), plan_bytes - 820) << "more is missing: a whole step";
}

TEST(ArenaController, an_arena_that_is_not_full_takes_no_more_than_fits) {
  ArenaController controller(floor_bytes, plan_bytes);
  MemoryReadings readings{.now_ms = 1, .expert_bytes = 300, .rooms = {{"limit", 1320, 20}}};
  EXPECT_EQ(controller.update(readings), plan_bytes);
  readings = {.now_ms = 1001, .expert_bytes = 310, .rooms = {{"limit", 1300, 20}}};
  EXPECT_EQ(controller.update(readings), plan_bytes - 10) << "what does not fit, not a step";
  EXPECT_EQ(controller.reason(), "limit: 1300 bytes are left for 1290 more");
  readings = {.now_ms = 5001, .expert_bytes = 310, .rooms = {{"limit", 10, 20}}};
  EXPECT_EQ(controller.update(readings), 300) << "already short: what is there shrinks too";
}

TEST(ArenaController, room_for_weights_and_conversations_is_kept) {
  ArenaController controller(floor_bytes, plan_bytes, 500);
  MemoryReadings readings{.now_ms = 1,
                          .anonymous_bytes = 400,
                          .expert_bytes = 300,
                          .rooms = {{"limit", 1300 + 400, 0}}};
  EXPECT_EQ(controller.update(readings), plan_bytes) << "400 of the 500 are yet to come";
  readings.now_ms = 1001;
  readings.rooms[0].free_bytes -= 30;
  EXPECT_EQ(controller.update(readings), plan_bytes - 30);
  readings.now_ms = 5001;
  readings.anonymous_bytes = 2000;
  EXPECT_EQ(controller.update(readings), plan_bytes - 30) << "more than planned is no room";
}

TEST(ArenaController, it_stops_at_the_floor) {
  Machine machine(-1'000'000);
  EXPECT_EQ(machine.run(100), floor_bytes);
}

TEST(ArenaController, pressure_takes_a_step_every_ten_seconds) {
  Machine machine(5000);
  machine.set_pressure(30, 0);
  EXPECT_EQ(machine.run(1), plan_bytes - step);
  EXPECT_EQ(machine.run(9), plan_bytes - step);
  EXPECT_EQ(machine.run(1), plan_bytes - 2 * step);
  machine.set_pressure(0, 6);
  EXPECT_EQ(machine.run(10), plan_bytes - 3 * step);
}

TEST(ArenaController, after_calm_it_grows_back_to_the_plan_in_small_steps) {
  Machine machine(5000);
  machine.set_pressure(30, 0);
  machine.run(31);
  const int64_t shrunk = plan_bytes - 4 * step;
  machine.set_pressure(0, 0);
  EXPECT_EQ(machine.run(29), shrunk) << "not before half a minute of calm";
  EXPECT_EQ(machine.run(1), shrunk + step / 4);
  EXPECT_EQ(machine.run(5), shrunk + step / 2);
  EXPECT_EQ(machine.run(1000), plan_bytes);
}

TEST(ArenaController, a_little_pressure_keeps_things_as_they_are) {
  Machine machine(5000);
  machine.set_pressure(30, 0);
  machine.run(1);
  machine.set_pressure(2, 0);
  EXPECT_EQ(machine.run(1000), plan_bytes - step);
}

TEST(ArenaController, the_tightest_of_several_limits_decides) {
  ArenaController controller(floor_bytes, plan_bytes);
  const MemoryReadings readings{
      .now_ms = 1,
      .expert_bytes = plan_bytes,
      .rooms = {{"wide", 10'000, 0}, {"narrow", 10, 60}, {"other", 50, 0}}};
  EXPECT_EQ(controller.update(readings), plan_bytes - step);
  EXPECT_EQ(controller.reason(), "narrow: 10 bytes are left");
}

TEST(ArenaController, whatever_happens_it_stays_between_floor_and_plan) {
  std::mt19937 random(7);
  ArenaController controller(floor_bytes, plan_bytes, 700);
  MemoryReadings readings;
  for (int i = 0; i < 100'000; ++i) {
    readings.now_ms += random() % 20'000;
    readings.some_percent = random() % 3 == 0 ? 30 : 0;
    readings.full_percent = random() % 5 == 0 ? 30 : 0;
    readings.expert_bytes = static_cast<int64_t>(random() % (2 * plan_bytes));
    readings.anonymous_bytes = static_cast<int64_t>(random() % (3 * plan_bytes));
    readings.rooms = {{"a", static_cast<int64_t>(random() % 4000) - 1000, 100}};
    const int64_t target = controller.update(readings);
    ASSERT_GE(target, floor_bytes);
    ASSERT_LE(target, plan_bytes);
  }
}

TEST(ArenaController, a_plan_at_the_floor_never_changes) {
  ArenaController controller(100, 100);
  EXPECT_EQ(controller.update({.now_ms = 1, .some_percent = 90, .rooms = {{"a", -9, 0}}}), 100);
}

}  // namespace
}  // namespace glmd
