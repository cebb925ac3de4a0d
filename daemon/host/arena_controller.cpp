#include "host/arena_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace glmd {
namespace {

constexpr double pressed_some_percent = 10, pressed_full_percent = 5;
constexpr double calm_some_percent = 1;
// Memory given back shows in the limits soon, in averages over ten seconds much later.
constexpr int64_t shortage_settles_ms = 3'000;
constexpr int64_t pressure_settles_ms = 10'000;
constexpr int64_t calm_before_growth_ms = 30'000;
constexpr int64_t growth_interval_ms = 5'000;
constexpr int64_t growths_per_step = 4;

int64_t spare_bytes(const MemoryRoom& room) {
  return room.free_bytes - room.low_bytes;
}

std::string say(const MemoryRoom& room, int64_t coming) {
  const std::string left = fmt::format("{}: {} bytes are left", room.name, room.free_bytes);
  return coming > 0 ? fmt::format("{} for {} more", left, coming) : left;
}

}  // namespace

int64_t ArenaController::update(const MemoryReadings& readings) {
  now_ms_ = readings.now_ms;
  const auto tightest = std::min_element(
      readings.rooms.begin(), readings.rooms.end(),
      [](const MemoryRoom& a, const MemoryRoom& b) { return spare_bytes(a) < spare_bytes(b); });
  const bool has_room = tightest != readings.rooms.end();
  const int64_t coming = coming_bytes(readings);
  const int64_t spare = has_room ? spare_bytes(*tightest) - coming : INT64_MAX;
  const bool is_short = spare < -std::max<int64_t>(0, coming);  // now, not when it is full
  const bool is_pressed =
      readings.some_percent > pressed_some_percent || readings.full_percent > pressed_full_percent;
  if (spare < 0 || is_pressed || readings.some_percent > calm_some_percent) disturbed_ms_ = now_ms_;

  const int64_t since_change_ms = now_ms_ - changed_ms_;
  if (spare < 0) {
    if (since_change_ms < shortage_settles_ms) return target_bytes_;
    shrink(is_short ? std::max(step_bytes(), -spare) : -spare, say(*tightest, coming));
  } else if (is_pressed) {
    if (since_change_ms < pressure_settles_ms) return target_bytes_;
    shrink(step_bytes(), fmt::format("memory pressure: some {:.0f} %, full {:.0f} %",
                                     readings.some_percent, readings.full_percent));
  } else if (now_ms_ - disturbed_ms_ >= calm_before_growth_ms &&
             since_change_ms >= growth_interval_ms) {
    // As much again must be left, or the next reading takes it back.
    const int64_t bytes = std::max<int64_t>(1, step_bytes() / growths_per_step);
    if (spare / 2 >= bytes) grow(bytes);
  }
  return target_bytes_;
}

// What we take yet if nothing changes, or, below zero, give back.
int64_t ArenaController::coming_bytes(const MemoryReadings& readings) const {
  const int64_t others = std::max<int64_t>(0, readings.anonymous_bytes - readings.expert_bytes);
  return target_bytes_ - readings.expert_bytes + std::max<int64_t>(0, other_bytes_ - others);
}

void ArenaController::shrink(int64_t bytes, std::string reason) {
  const int64_t target = std::max(floor_bytes_, target_bytes_ - bytes);
  if (target == target_bytes_) return;
  target_bytes_ = target;
  changed_ms_ = now_ms_;
  reason_ = std::move(reason);
}

void ArenaController::grow(int64_t bytes) {
  const int64_t target = std::min(plan_bytes_, target_bytes_ + bytes);
  if (target == target_bytes_) return;
  target_bytes_ = target;
  changed_ms_ = now_ms_;
  reason_ = "there is room again";
}

}  // namespace glmd
