// The expert cache over a reader that misbehaves on purpose.
#include "experts/expert_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "faulty_reader.h"
#include "storage/manifest.h"

namespace glmd {
namespace {

constexpr int64_t expert_size = 4096;

std::vector<uint8_t> random_bytes(int64_t count, uint32_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  std::mt19937 random(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// A cache of equal experts over a file, and what a layer does with it.
class Rig {
 public:
  Rig(int32_t experts, int64_t slots, uint32_t seed, double fault_share = 0)
      : content_(random_bytes(experts * expert_size, 7)),
        reader(content_, seed, fault_share),
        cache(ExpertCache::create(extents(experts), slots * expert_size, reader, Verify::always)
                  .value()) {}

  std::vector<ExpertExtent> extents(int32_t count) const {
    std::vector<ExpertExtent> list;
    for (int32_t i = 0; i < count; ++i) {
      list.push_back({.file = 0,
                      .offset = i * expert_size,
                      .bytes = expert_size,
                      .hash = hash_of(i),
                      .name = "expert " + std::to_string(i),
                      .file_name = "experts.safetensors"});
    }
    return list;
  }
  uint64_t hash_of(int32_t expert) const {
    return hash_bytes({content_.data() + expert * expert_size, expert_size});
  }

  void begin_step(std::vector<int32_t> experts, double uses = 1, ExpertRange layer = {0, 1 << 20},
                  Pace pace = Pace::step) {
    std::vector<ExpertWant> wants;
    for (const int32_t expert : experts) wants.push_back({expert, uses});
    cache.begin_step(layer, wants, pace);
  }
  // One layer: every expert is had and checked.
  void run(std::vector<int32_t> experts, double uses = 1, ExpertRange layer = {0, 1 << 20},
           Pace pace = Pace::step) {
    begin_step(experts, uses, layer, pace);
    std::vector<int32_t> absent;
    for (const int32_t expert : experts) {
      if (cache.is_absent(expert)) absent.push_back(expert);
      if (const auto lease = cache.find(expert)) expect_whole(expert, *lease);
    }
    size_t begun = 0;
    while (begun < absent.size() || cache.loading_count() > 0) {
      while (begun < absent.size() && cache.start_load(absent[begun])) ++begun;
      ExpertCache::Arrival arrival = cache.wait_for_arrival();
      ASSERT_TRUE(arrival.lease.ok());
      expect_whole(arrival.expert, arrival.lease.value());
    }
  }
  void expect_whole(int32_t expert, const ExpertLease& lease) const {
    EXPECT_EQ(hash_bytes({lease.bytes(), expert_size}), hash_of(expert));
  }
  bool is_here(int32_t expert) { return cache.find(expert).has_value(); }

 private:
  std::vector<uint8_t> content_;

 public:
  FaultyReader reader;
  ExpertCache cache;
};

TEST(ExpertCache, an_arena_below_two_slots_is_refused_with_both_numbers) {
  Rig rig(8, 2, 1);
  const Result<ExpertCache> cache =
      ExpertCache::create(rig.extents(8), 4096, rig.reader, Verify::always);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().kind, ErrorKind::no_memory);
  EXPECT_EQ(cache.error().message, "expert arena: wanted at least 8192 bytes, got 4096");
}

TEST(ExpertCache, sizes_share_the_arena_by_their_experts_and_leave_no_slot_unused) {
  Rig rig(100, 2, 1);
  std::vector<ExpertExtent> extents = rig.extents(100);
  for (int32_t i = 90; i < 100; ++i) extents[i].bytes = 2 * expert_size;
  EXPECT_EQ(ExpertCache::arena_bytes_min(extents), 6 * expert_size);
  // Half of each: 45 of one size, 5 of twice the size.
  const ExpertCache half =
      ExpertCache::create(extents, 55 * expert_size, rig.reader, Verify::off).value();
  EXPECT_EQ(half.slot_count(), 50);
  const ExpertCache all =
      ExpertCache::create(extents, 1000 * expert_size, rig.reader, Verify::off).value();
  EXPECT_EQ(all.slot_count(), 100);
}

// Reads expert 0 twice: it is evicted in between.
int64_t checked_reads(Verify verify) {
  Rig rig(8, 2, 1);
  ExpertCache cache =
      ExpertCache::create(rig.extents(8), 2 * expert_size, rig.reader, verify).value();
  for (const int32_t expert : {0, 1, 2, 3, 0}) {
    const std::vector<ExpertWant> wants = {{expert, 1}};
    cache.begin_step({0, 8}, wants);
    EXPECT_TRUE(cache.start_load(expert));
    EXPECT_TRUE(cache.wait_for_arrival().lease.ok());
  }
  return rig.reader.checked_count;
}

TEST(ExpertCache, checksums_are_asked_for_as_the_setting_says) {
  EXPECT_EQ(checked_reads(Verify::off), 0);
  EXPECT_EQ(checked_reads(Verify::first_read), 4);
  EXPECT_EQ(checked_reads(Verify::always), 5);
}

TEST(ExpertCache, every_read_that_a_second_one_put_right_is_told) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(8, 2, seed, 0.3);
    int64_t failed_count = 0;
    std::vector<std::string> events;
    for (int32_t i = 0; i < 100; ++i) {
      const int32_t expert = i % 8;
      rig.begin_step({expert});
      if (!rig.cache.is_absent(expert)) continue;
      ASSERT_TRUE(rig.cache.start_load(expert));
      failed_count += rig.cache.wait_for_arrival().lease.ok() ? 0 : 1;
      for (std::string& event : rig.cache.take_events()) {
        EXPECT_TRUE(event.starts_with(fmt::format("expert {}: experts.safetensors: ", expert)));
        EXPECT_TRUE(event.ends_with("; right when read again")) << event;
        events.push_back(std::move(event));
      }
    }
    EXPECT_GT(std::ssize(events), 10);
    EXPECT_EQ(std::ssize(events) + failed_count, rig.cache.stats().rereads);
  }
}

TEST(ExpertCache, what_came_wrong_ahead_of_the_router_is_a_reread_when_it_is_wanted) {
  std::vector<uint8_t> content = random_bytes(64 * expert_size, 7);
  std::vector<ExpertExtent> extents;
  for (int32_t i = 0; i < 64; ++i) {
    extents.push_back({.file = 0,
                       .offset = i * expert_size,
                       .bytes = expert_size,
                       .hash = hash_bytes({content.data() + i * expert_size, expert_size}),
                       .name = "expert " + std::to_string(i),
                       .file_name = "experts.safetensors"});
  }
  FaultyReader reader(content, 1, 0);
  ExpertCache cache =
      ExpertCache::create(extents, 32 * expert_size, reader, Verify::first_read).value();
  cache.allow_read_ahead(true);
  content[5 * expert_size] ^= 1;
  ASSERT_TRUE(cache.read_ahead(5));
  while (reader.outstanding() > 0) cache.poll_arrival();
  content[5 * expert_size] ^= 1;
  EXPECT_EQ(cache.stats().rereads, 0);
  cache.begin_step({0, 64}, std::vector<ExpertWant>{{5, 1}});
  ASSERT_TRUE(cache.start_load(5));
  EXPECT_TRUE(cache.wait_for_arrival().lease.ok());
  EXPECT_EQ(cache.stats().rereads, 1);
  EXPECT_EQ(cache.take_events().size(), 1U);
  EXPECT_TRUE(cache.take_events().empty());
}

TEST(ExpertCache, a_pinned_expert_is_never_evicted) {
  Rig rig(8, 2, 2);
  rig.begin_step({0});
  ASSERT_TRUE(rig.cache.start_load(0));
  const ExpertLease pinned = rig.cache.wait_for_arrival().lease.value();
  for (int32_t expert = 1; expert < 8; ++expert) rig.run({expert});
  rig.expect_whole(0, pinned);
  EXPECT_TRUE(rig.is_here(0));
}

TEST(ExpertCache, a_full_cache_of_pins_starts_no_load) {
  Rig rig(8, 2, 3);
  rig.begin_step({0, 1, 2});
  ASSERT_TRUE(rig.cache.start_load(0));
  ASSERT_TRUE(rig.cache.start_load(1));
  const ExpertLease first = rig.cache.wait_for_arrival().lease.value();
  const ExpertLease second = rig.cache.wait_for_arrival().lease.value();
  EXPECT_FALSE(rig.cache.start_load(2));
}

TEST(ExpertCache, experts_of_the_running_step_are_the_last_victims) {
  Rig rig(8, 3, 4);
  rig.run({0, 2}, 100);  // hot
  rig.run({1});
  rig.run({1, 5});
  EXPECT_TRUE(rig.is_here(1));
  EXPECT_TRUE(rig.is_here(5));
}

TEST(ExpertCache, a_step_that_wants_more_than_fits_runs_in_waves) {
  Rig rig(8, 2, 5);
  rig.run({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(rig.reader.submitted.size(), 8U);
}

TEST(ExpertCache, uses_are_forgotten_by_tokens_not_by_layers) {
  Rig rig(8, 2, 6);
  rig.run({0, 1}, 100);
  for (int layer = 0; layer < 1000; ++layer) rig.begin_step({});
  rig.cache.advance(1);
  rig.run({2});  // as cold as the slots can get
  rig.run({3});
  EXPECT_EQ(rig.is_here(0) + rig.is_here(1), 1);
  rig.cache.advance(64 * 20);
  rig.run({4, 5});
  EXPECT_EQ(rig.is_here(0) + rig.is_here(1), 0);
}

TEST(ExpertCache, a_history_is_a_prior_but_what_a_step_wants_comes_first) {
  Rig rig(8, 3, 7);
  rig.cache.seed_heat(3, 10);
  rig.run({0, 1, 3});
  rig.run({0, 1});
  rig.run({0, 1, 4});  // 3 would be the least recent, 0 and 1 are wanted
  EXPECT_FALSE(rig.is_here(3));
  rig.run({3});
  rig.run({5});
  EXPECT_TRUE(rig.is_here(3));
}

TEST(ExpertCache, shrinking_evicts_the_coldest_and_growing_takes_the_memory_again) {
  Rig rig(16, 8, 8);
  EXPECT_EQ(rig.cache.held_bytes(), 0);
  rig.run({0, 1, 2, 3, 4, 5, 6, 7});
  rig.run({1, 4, 6}, 5);
  EXPECT_EQ(rig.cache.held_bytes(), 8 * expert_size);
  EXPECT_EQ(rig.cache.resize(3 * expert_size), 3 * expert_size);
  EXPECT_EQ(rig.cache.slot_count(), 3);
  EXPECT_EQ(rig.cache.held_bytes(), 3 * expert_size);
  for (const int32_t expert : {1, 4, 6}) EXPECT_TRUE(rig.is_here(expert)) << expert;
  EXPECT_EQ(rig.cache.resize(0), 2 * expert_size) << "the floor";
  rig.run({8, 9, 10});
  EXPECT_EQ(rig.cache.resize(100 * expert_size), 8 * expert_size) << "what was reserved";
  EXPECT_EQ(rig.cache.held_bytes(), 2 * expert_size) << "taken when read into";
  rig.run({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(rig.cache.resident_count(), 8);
}

// The cache may see the end of a read a conversation later, when it looks next.
TEST(ExpertCache, reading_takes_as_long_as_the_reader_is_busy) {
  Rig rig(8, 4, 7);
  rig.run({0, 1, 2});
  rig.reader.busy_ns = 1'500'000'000;
  EXPECT_EQ(rig.cache.stats().read_seconds, 1.5);
}

TEST(ExpertCache, other_threads_see_the_memory_of_a_read_when_it_begins) {
  Rig rig(16, 8, 8);
  std::atomic<int64_t> held_bytes{-1};
  rig.cache.publish_held_bytes(held_bytes);
  EXPECT_EQ(held_bytes, 0);
  rig.cache.begin_step({0, 16}, std::vector<ExpertWant>{{3, 1}});
  ASSERT_TRUE(rig.cache.start_load(3));
  EXPECT_EQ(held_bytes, expert_size);
  rig.cache.drain();
  rig.run({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(held_bytes, 6 * expert_size);
  rig.cache.resize(2 * expert_size);
  EXPECT_EQ(held_bytes, 2 * expert_size);
}

// Four layers of 16 experts in 32 slots, 4 of which are buffers: each layer's share is 7.
TEST(ExpertCache, a_stream_reads_each_expert_once_and_leaves_the_other_layers_alone) {
  Rig rig(64, 32, 9);
  rig.cache.allow_read_ahead(true);
  for (int32_t layer = 0; layer < 4; ++layer) {
    std::vector<int32_t> some;
    for (int32_t i = 0; i < 7; ++i) some.push_back(16 * layer + i);
    rig.run(some);
  }
  const int64_t resident_count = rig.cache.resident_count();
  ASSERT_EQ(resident_count, 28);
  rig.reader.submitted.clear();
  rig.cache.advance(512);
  for (int32_t layer = 0; layer < 4; ++layer) {
    std::vector<int32_t> all;
    for (int32_t i = 0; i < 16; ++i) all.push_back(16 * layer + i);
    rig.run(all, 1, {16 * layer, 16}, Pace::stream);
  }
  EXPECT_EQ(std::set(rig.reader.submitted.begin(), rig.reader.submitted.end()).size(),
            rig.reader.submitted.size());
  EXPECT_EQ(rig.reader.submitted.size(), 64U - resident_count);
}

// Nobody has to make room: neither a share for reads ahead nor a stream costs a read.
TEST(ExpertCache, an_arena_for_all_experts_reads_each_of_them_once) {
  Rig rig(64, 64, 6);
  rig.cache.allow_read_ahead(true);
  std::vector<int32_t> all(64);
  std::iota(all.begin(), all.end(), 0);
  for (int32_t round = 0; round < 3; ++round) {
    for (int32_t layer = 0; layer < 4; ++layer) {
      const std::vector<int32_t> own(all.begin() + 16 * layer, all.begin() + 16 * (layer + 1));
      rig.run(own, 1, {16 * layer, 16}, round == 0 ? Pace::step : Pace::stream);
    }
  }
  EXPECT_EQ(rig.cache.stats().misses, 64);
  EXPECT_EQ(rig.cache.stats().read_bytes, 64 * expert_size);
  EXPECT_EQ(rig.cache.resident_count(), 64);
}

TEST(ExpertCache, a_stream_keeps_its_hottest) {
  Rig rig(32, 16, 10);
  std::vector<ExpertWant> wants;
  for (int32_t i = 0; i < 16; ++i) wants.push_back({i, i % 2 == 0 && i < 14 ? 8.0 : 1.0});
  rig.cache.begin_step({0, 16}, wants, Pace::stream);
  for (int32_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(rig.cache.start_load(i)) << i;
    rig.cache.drain();
  }
  for (int32_t i = 0; i < 16; ++i) EXPECT_EQ(rig.is_here(i), i % 2 == 0 && i < 14) << i;
}

// 16 slots, of which 2 are for reads ahead.
class ReadAhead : public testing::Test {
 protected:
  ReadAhead() { rig.cache.allow_read_ahead(true); }
  ExpertCacheStats stats() { return rig.cache.stats(); }
  Rig rig{64, 16, 11};
  const ExpertRange layer{32, 32};
};

TEST_F(ReadAhead, is_refused_unless_allowed_and_beyond_its_share) {
  Rig other(64, 16, 12);
  EXPECT_FALSE(other.cache.read_ahead(1));
  EXPECT_TRUE(rig.cache.read_ahead(32));
  EXPECT_FALSE(rig.cache.read_ahead(32)) << "it is on its way";
  EXPECT_TRUE(rig.cache.read_ahead(33));
  EXPECT_FALSE(rig.cache.read_ahead(34));
  EXPECT_EQ(stats().ahead_issued, 2);
}

TEST_F(ReadAhead, whole_when_wanted_is_a_hit_and_stays) {
  ASSERT_TRUE(rig.cache.read_ahead(40));
  while (rig.reader.outstanding() > 0) rig.cache.poll_arrival();
  rig.run({40}, 1, layer);
  EXPECT_EQ(stats().ahead_used, 1);
  EXPECT_EQ(stats().hits, 1);
  EXPECT_EQ(stats().misses, 0);
  EXPECT_EQ(rig.cache.resident_count(), 1);
}

TEST_F(ReadAhead, that_came_while_nobody_looked_is_a_hit) {
  ASSERT_TRUE(rig.cache.read_ahead(40));
  ASSERT_TRUE(rig.cache.read_ahead(41));
  rig.reader.silent_share = 0;
  rig.begin_step({40}, 1, layer);
  EXPECT_TRUE(rig.is_here(40));
  EXPECT_EQ(stats().ahead_used, 1);
  EXPECT_EQ(stats().ahead_wasted, 1);
  EXPECT_EQ(stats().misses, 0);
}

TEST_F(ReadAhead, under_way_when_wanted_is_read_on_as_demand) {
  rig.reader.silent_share = 1;
  ASSERT_TRUE(rig.cache.read_ahead(40));
  rig.run({40}, 1, layer);
  EXPECT_EQ(stats().ahead_late, 1);
  EXPECT_EQ(stats().misses, 1);
  EXPECT_EQ(rig.reader.submitted.size(), 1U);
}

TEST_F(ReadAhead, a_wrong_guess_is_cancelled_or_gives_its_slot_to_the_next) {
  for (int32_t round = 0; round < 200; ++round) {
    const int32_t guess = 40 + round % 20;
    const bool is_absent = rig.cache.is_absent(guess);
    ASSERT_EQ(rig.cache.read_ahead(guess), is_absent) << round;
    rig.run({32}, 1, layer);
    while (rig.reader.outstanding() > 0) rig.cache.poll_arrival();
  }
  EXPECT_EQ(stats().ahead_used + stats().ahead_late, 0);
  EXPECT_GT(stats().ahead_wasted, 0);
  EXPECT_GT(stats().ahead_dropped, 0);
  EXPECT_EQ(stats().ahead_wasted + stats().ahead_dropped, stats().ahead_issued);
}

TEST_F(ReadAhead, a_cancelled_one_that_is_wanted_after_all_is_read) {
  for (int32_t round = 0; round < 50; ++round) {
    const int32_t expert = 40 + round % 20;
    if (!rig.cache.is_absent(expert)) continue;
    ASSERT_TRUE(rig.cache.read_ahead(expert));
    rig.begin_step({33}, 1, layer);  // cancels
    rig.run({expert}, 1, layer);
  }
}

TEST_F(ReadAhead, guesses_of_a_pass_survive_the_layers_of_another) {
  ASSERT_TRUE(rig.cache.read_ahead(40));
  rig.run({0, 1, 2, 3}, 1, {0, 32});
  rig.run({40}, 1, layer);
  EXPECT_EQ(stats().ahead_used + stats().ahead_late, 1);
}

// Guesses whose layer has not been asked yet, whole or on their way, may be all that is left of an
// arena that shrank: others must find slots all the same.
TEST_F(ReadAhead, of_another_layer_leaves_a_shrunken_arena_its_floor) {
  for (const bool are_whole : {true, false}) {
    rig.run({0, 1, 2, 3}, 1, {0, 32});
    ASSERT_TRUE(rig.cache.read_ahead(40));
    ASSERT_TRUE(rig.cache.read_ahead(41));
    while (are_whole && rig.reader.outstanding() > 0) rig.cache.poll_arrival();
    EXPECT_EQ(rig.cache.resize(0), (are_whole ? 2 : 4) * expert_size) << "reads are under way";
    rig.begin_step({4}, 1, {0, 32});
    ASSERT_TRUE(rig.cache.start_load(4));
    rig.cache.drain();
    rig.run({50}, 1, layer);  // settles them
    while (rig.reader.outstanding() > 0) rig.cache.poll_arrival();
    EXPECT_EQ(rig.cache.resize(0), 2 * expert_size);
    rig.cache.resize(16 * expert_size);
  }
  EXPECT_EQ(stats().ahead_wasted + stats().ahead_dropped, stats().ahead_issued);
}

TEST_F(ReadAhead, never_evicts_what_the_step_wants_and_costs_residents_nothing_but_its_share) {
  std::vector<int32_t> hot;
  for (int32_t i = 0; i < 14; ++i) hot.push_back(i);
  rig.run(hot, 50, {0, 32});
  for (int32_t round = 0; round < 100; ++round) {
    rig.cache.read_ahead(40 + round % 24);
    rig.run({33}, 0.01, layer);
  }
  int here = 0;
  for (const int32_t expert : hot) here += rig.is_here(expert);
  EXPECT_GE(here, 13) << "33 is resident too";
}

TEST(Eviction, the_coldest_goes_ties_by_least_recent_use) {
  const SlotUse hot{.heat = 3, .last_step = 1}, cold{.heat = 1, .last_step = 5},
      colder{.heat = 1, .last_step = 4}, wanted{.heat = 0, .last_step = 0, .is_wanted = true};
  const std::vector<SlotUse> order = {colder, cold, hot, wanted};
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = 0; j < order.size(); ++j) {
      EXPECT_EQ(goes_before(order[i], order[j]), i < j) << i << ", " << j;
    }
  }
}

TEST(Eviction, an_old_favourite_is_outlived) {
  const double old_favourite = add_uses(-1e300, 100, 0, 64);
  const double newcomer = add_uses(-1e300, 1, 64 * 7, 64);  // 100 halved seven times is below one
  EXPECT_LT(old_favourite, newcomer);
  EXPECT_GT(old_favourite, add_uses(-1e300, 1, 64 * 6, 64));
}

TEST(Eviction, a_layer_gives_from_its_equal_share_on_else_the_one_that_holds_most) {
  const std::vector<int64_t> held = {3, 5, 4};
  EXPECT_EQ(choose_giver(held, 2, 12), 2);
  EXPECT_EQ(choose_giver(held, 0, 12), 1);
  EXPECT_EQ(choose_giver(held, -1, 12), 1);
  EXPECT_EQ(choose_giver(held, 2, 14), 2) << "14 slots are 4 for each layer and two over";
}

// Of the slots that are evictable.
int32_t first_by_looking(const std::vector<std::optional<SlotUse>>& slots) {
  int32_t first = -1;
  for (int32_t slot = 0; slot < std::ssize(slots); ++slot) {
    if (slots[slot] && (first < 0 || goes_before(*slots[slot], *slots[first]))) first = slot;
  }
  return first;
}

TEST(Eviction, the_queue_names_the_same_victim_as_a_look_at_every_slot) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<std::optional<SlotUse>> slots(37);
    VictimQueue queue(37, 2);
    for (int change = 0; change < 1000; ++change) {
      const auto slot = static_cast<int32_t>(random() % slots.size());
      if (random() % 3 != 0) {
        slots[slot] = {.heat = static_cast<double>(random() % 6),
                       .last_step = static_cast<int64_t>(random() % 4),
                       .is_wanted = random() % 4 == 0};
        queue.put(slot, 1, *slots[slot]);
      } else {
        slots[slot].reset();
        queue.remove(slot);
      }
      ASSERT_EQ(queue.first(1), first_by_looking(slots));
    }
  }
}

// Guesses, streams, faults, warming up and an arena of changing size, in any order: every step gets
// what it wants, or a read's error.
TEST(ExpertCache, every_step_ends_whatever_happened_before_it) {
  constexpr int32_t layers = 4, experts = 16;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t bound) { return static_cast<int32_t>(random() % bound); };
    const int64_t slots = 2 + below(63);
    Rig rig(layers * experts, slots, seed, seed % 4 == 0 ? 0.2 : 0);
    rig.reader.hang_share = seed % 3 == 0 ? 0.1 : 0;
    rig.cache.allow_read_ahead(seed % 8 != 1);
    std::vector<int32_t> warm(layers * experts);
    std::iota(warm.begin(), warm.end(), 0);
    rig.cache.plan_warm_up(warm);
    for (int32_t round = 0; round < 300; ++round) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
      if (below(20) == 0) rig.cache.resize(below(slots + 1) * expert_size);
      if (below(4) == 0) rig.cache.warm_up();
      rig.cache.advance(1);
      const int32_t layer = below(layers);
      const ExpertRange range{layer * experts, experts};
      std::vector<int32_t> wanted;
      const int64_t wish = below(5) == 0 ? 1 : 8;
      for (int32_t i = 0; i < experts; ++i) {
        if (below(experts) < wish) wanted.push_back(range.first + i);
      }
      rig.begin_step(wanted, 1, range, below(4) == 0 ? Pace::stream : Pace::step);
      std::vector<int32_t> absent;
      std::vector<ExpertLease> hits;
      for (const int32_t expert : wanted) {
        if (rig.cache.is_absent(expert)) absent.push_back(expert);
        if (auto lease = rig.cache.find(expert)) hits.push_back(std::move(*lease));
      }
      const size_t arrivals = wanted.size() - hits.size();
      size_t begun = 0, arrived = 0;
      bool has_failed = false;
      while (!has_failed && arrived < arrivals) {
        while (begun < absent.size() && rig.cache.start_load(absent[begun])) ++begun;
        if (below(2) == 0) {
          rig.cache.read_ahead((range.first + experts + below(experts)) % (layers * experts));
        }
        hits.clear();
        while (begun < absent.size() && rig.cache.start_load(absent[begun])) ++begun;
        ASSERT_GT(rig.cache.loading_count(), 0) << "nothing to wait for";
        ExpertCache::Arrival arrival = rig.cache.wait_for_arrival();
        ++arrived;
        has_failed = !arrival.lease.ok();
        if (!has_failed) rig.expect_whole(arrival.expert, arrival.lease.value());
      }
      rig.cache.drain();
    }
  }
}

TEST(ExpertCache, warming_up_fills_free_slots_in_order_and_evicts_nothing) {
  Rig rig(8, 4, 1);
  rig.run({7});
  rig.cache.plan_warm_up({5, 7, 2, 0, 1});
  while (rig.cache.warm_up()) {
  }
  EXPECT_EQ(rig.cache.resident_count(), 4);
  for (const int32_t expert : {7, 5, 2, 0}) {
    const std::optional<ExpertLease> lease = rig.cache.find(expert);
    ASSERT_TRUE(lease.has_value()) << expert;
    rig.expect_whole(expert, *lease);
  }
  EXPECT_TRUE(rig.cache.is_absent(1));
}

TEST(ExpertCache, warming_up_fills_the_slots_of_every_size) {
  const Rig experts(16, 2, 1);
  std::vector<ExpertExtent> extents = experts.extents(16);
  for (int32_t i = 0; i < 2; ++i) extents[i].bytes = 2 * expert_size;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Rig rig(16, 2, seed);
    ExpertCache cache =
        ExpertCache::create(extents, 18 * expert_size, rig.reader, Verify::off).value();
    cache.plan_warm_up({0, 2, 3, 4, 5, 1});
    while (cache.warm_up()) {
    }
    EXPECT_EQ(cache.resident_count(), 6) << seed;
  }
}

TEST(ExpertCache, an_expert_wanted_while_it_warms_up_is_read_once) {
  Rig rig(8, 8, 1);
  rig.cache.plan_warm_up({0, 1, 2});
  ASSERT_TRUE(rig.cache.warm_up());  // one of two is whole, the other under way
  const int32_t under_way = rig.is_here(0) ? 1 : 0;
  rig.run({under_way});
  EXPECT_EQ(rig.cache.stats().read_bytes, 2 * expert_size);
  while (rig.cache.warm_up()) {
  }
  EXPECT_EQ(rig.cache.resident_count(), 3);
}

TEST(ExpertCache, while_a_disk_hangs_whoever_asked_is_told_every_time_and_at_the_end) {
  Rig rig(8, 4, 1);
  int64_t calls = 0;
  rig.cache.set_while_waiting([&] { ++calls; });
  rig.run({0});
  EXPECT_EQ(calls, 0);
  rig.reader.slices_to_hang = 3;
  rig.run({1, 2});
  EXPECT_EQ(calls, 4);
}

TEST(ExpertCache, what_hangs_on_one_disk_is_read_from_another_into_another_slot) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(16, 8, seed);
    rig.reader.hangs_forever = true;
    rig.reader.hang_share = 1;
    rig.begin_step({0});
    ASSERT_TRUE(rig.cache.start_load(0));
    rig.reader.hang_share = 0;
    const ExpertCache::Arrival arrival = rig.cache.wait_for_arrival();
    ASSERT_TRUE(arrival.lease.ok());
    for (const int32_t first : {1, 4, 7, 10}) rig.run({first, first + 1, first + 2, 0});
    rig.expect_whole(0, arrival.lease.value());
    EXPECT_EQ(rig.cache.resident_count(), 7);
    EXPECT_EQ(rig.cache.resize(8 * expert_size), 8 * expert_size) << "it has its memory yet";
    rig.reader.hangs_forever = false;
    while (rig.reader.outstanding() > 0) rig.cache.warm_up();
    rig.run({8, 9, 10, 11, 12, 13, 14, 0});
    EXPECT_EQ(rig.cache.resident_count(), 8);
    rig.expect_whole(0, arrival.lease.value());
  }
}

TEST(ExpertCache, the_last_slots_are_not_left_to_a_disk_that_hangs) {
  Rig rig(16, 4, 1);
  rig.reader.hang_share = 1;
  rig.begin_step({0, 1, 2, 3});
  for (const int32_t expert : {0, 1, 2, 3}) ASSERT_TRUE(rig.cache.start_load(expert));
  for (int i = 0; i < 4; ++i) {  // as long as the disk takes
    const ExpertCache::Arrival arrival = rig.cache.wait_for_arrival();
    ASSERT_TRUE(arrival.lease.ok());
    rig.expect_whole(arrival.expert, arrival.lease.value());
  }
}

TEST(ExpertCache, a_smaller_arena_counts_the_slots_that_a_disk_holds) {
  Rig rig(16, 8, 1);
  rig.reader.hangs_forever = true;
  rig.reader.hang_share = 1;
  rig.begin_step({0});
  ASSERT_TRUE(rig.cache.start_load(0));
  rig.reader.hang_share = 0;
  ASSERT_TRUE(rig.cache.wait_for_arrival().lease.ok());
  EXPECT_EQ(rig.cache.resize(4 * expert_size), 4 * expert_size);
  EXPECT_EQ(rig.cache.slot_count(), 3) << "that may be used";
  EXPECT_EQ(rig.cache.resize(0), 3 * expert_size) << "the floor beside it";
  rig.reader.hangs_forever = false;
  while (rig.reader.outstanding() > 0) rig.cache.warm_up();
  EXPECT_EQ(rig.cache.resize(0), 2 * expert_size);
}

TEST(ExpertCache, a_disk_that_hangs_does_not_keep_the_one_who_warms_up) {
  Rig rig(8, 8, 1);
  rig.cache.plan_warm_up({0});
  rig.reader.slices_to_hang = 2;
  EXPECT_TRUE(rig.cache.warm_up());
  EXPECT_TRUE(rig.cache.warm_up());
  EXPECT_EQ(rig.cache.resident_count(), 0);
  EXPECT_TRUE(rig.cache.warm_up());
  EXPECT_EQ(rig.cache.resident_count(), 1);
  EXPECT_FALSE(rig.cache.warm_up());
}

TEST(ExpertCache, a_fault_while_warming_up_costs_nothing_but_the_read) {
  Rig rig(8, 8, 1, 1.0);
  rig.cache.plan_warm_up({0, 1, 2});
  while (rig.cache.warm_up()) {
  }
  EXPECT_EQ(rig.cache.resident_count(), 0);
  for (const int32_t expert : {0, 1, 2}) EXPECT_TRUE(rig.cache.is_absent(expert));
}

}  // namespace
}  // namespace glmd
