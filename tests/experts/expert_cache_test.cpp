// The expert cache over a reader that misbehaves on purpose.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "experts/expert_cache.h"
#include "storage/manifest.h"

namespace glmd {
namespace {

constexpr int64_t expert_size = 4096;

std::vector<uint8_t> content_of(int32_t expert) {
  std::vector<uint8_t> bytes(expert_size);
  std::mt19937 random(static_cast<uint32_t>(expert));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Delivers in any order, and fails or flips a bit as the seed says.
class FaultyReader : public BlockReader {
 public:
  explicit FaultyReader(uint32_t seed, double fault_share)
      : random_(seed), fault_share_(fault_share) {}

  void submit(const ReadRequest& request) override { waiting_.push_back(request); }
  void promote(uint64_t) override {}
  void cancel(uint64_t) override {}
  int64_t outstanding() const override { return static_cast<int64_t>(waiting_.size()); }
  std::optional<ReadCompletion> poll() override {
    if (waiting_.empty()) return std::nullopt;
    return wait();
  }
  ReadCompletion wait() override {
    const size_t index = random_() % waiting_.size();
    const ReadRequest request = waiting_[index];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::vector<uint8_t> bytes =
        content_of(static_cast<int32_t>(request.offset / expert_size));
    std::copy(bytes.begin(), bytes.end(), request.target);
    if (share() >= fault_share_) return {request.tag, Result<void>()};
    if (share() < 0.5) {
      request.target[random_() % expert_size] ^= 1;
      return {request.tag, Result<void>()};
    }
    return {request.tag,
            error(ErrorKind::io, "experts.safetensors: read at {}: wanted {} bytes, got 7",
                  request.offset, request.bytes)};
  }

 private:
  double share() { return static_cast<double>(random_() % 1000) / 1000; }
  std::deque<ReadRequest> waiting_;
  std::mt19937 random_;
  double fault_share_;
};

std::vector<ExpertExtent> extents(int32_t count) {
  std::vector<ExpertExtent> list;
  for (int32_t i = 0; i < count; ++i) {
    list.push_back({.file = 0,
                    .offset = i * expert_size,
                    .bytes = expert_size,
                    .hash = hash_bytes(content_of(i)),
                    .name = "layer 0: expert " + std::to_string(i)});
  }
  return list;
}

TEST(ExpertCache, an_arena_below_two_slots_is_refused_with_both_numbers) {
  FaultyReader reader(1, 0);
  const Result<ExpertCache> cache = ExpertCache::create(extents(8), 4096, reader, Verify::always);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().kind, ErrorKind::no_memory);
  EXPECT_EQ(cache.error().message, "expert arena: wanted at least 8192 bytes, got 4096");
}

TEST(ExpertCache, a_pinned_expert_is_never_evicted) {
  FaultyReader reader(2, 0);
  ExpertCache cache =
      ExpertCache::create(extents(8), 2 * expert_size, reader, Verify::always).value();
  cache.begin_step(1);
  cache.want(0, 1);
  ASSERT_TRUE(cache.start_load(0));
  const ExpertLease pinned = cache.wait_for_arrival().lease.value();
  for (int32_t expert = 1; expert < 8; ++expert) {
    cache.want(expert, 1);
    ASSERT_TRUE(cache.start_load(expert));
    EXPECT_EQ(cache.wait_for_arrival().expert, expert);
  }
  EXPECT_EQ(hash_bytes({pinned.bytes(), expert_size}), hash_bytes(content_of(0)));
  EXPECT_TRUE(cache.find(0).has_value());
}

TEST(ExpertCache, a_full_cache_of_pins_starts_no_load) {
  FaultyReader reader(3, 0);
  ExpertCache cache =
      ExpertCache::create(extents(8), 2 * expert_size, reader, Verify::always).value();
  cache.begin_step(1);
  ASSERT_TRUE(cache.start_load(0));
  ASSERT_TRUE(cache.start_load(1));
  const ExpertLease first = cache.wait_for_arrival().lease.value();
  const ExpertLease second = cache.wait_for_arrival().lease.value();
  EXPECT_FALSE(cache.start_load(2));
}

TEST(ExpertCache, experts_of_the_running_step_are_the_last_victims) {
  FaultyReader reader(4, 0);
  ExpertCache cache =
      ExpertCache::create(extents(8), 3 * expert_size, reader, Verify::always).value();
  cache.begin_step(1);
  for (int32_t expert : {0, 1, 2}) {
    cache.want(expert, 100);  // hot
    ASSERT_TRUE(cache.start_load(expert));
  }
  cache.drain();
  cache.begin_step(1);
  cache.want(1, 1);
  cache.want(5, 1);
  ASSERT_TRUE(cache.start_load(5));
  cache.drain();
  EXPECT_TRUE(cache.find(1).has_value());
}

TEST(ExpertCache, faults_end_in_the_right_bytes_or_an_error_that_names_the_expert) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultyReader reader(seed, 0.3);
    ExpertCache cache =
        ExpertCache::create(extents(12), 4 * expert_size, reader, Verify::always).value();
    std::mt19937 random(seed);
    for (int step = 0; step < 10; ++step) {
      cache.begin_step(1);
      for (int i = 0; i < 3; ++i) {
        const auto expert = static_cast<int32_t>(random() % 12);
        cache.want(expert, 1);
        std::optional<ExpertLease> lease = cache.find(expert);
        if (!lease) {
          ASSERT_TRUE(cache.start_load(expert));
          ExpertCache::Arrival arrival = cache.wait_for_arrival();
          ASSERT_EQ(arrival.expert, expert);
          if (!arrival.lease.ok()) {
            EXPECT_NE(arrival.lease.error().message.find("expert " + std::to_string(expert) + ":"),
                      std::string::npos)
                << arrival.lease.error().message;
            EXPECT_FALSE(cache.find(expert).has_value());
            continue;
          }
          lease = std::move(arrival.lease).value();
        }
        ASSERT_EQ(hash_bytes({lease->bytes(), expert_size}), hash_bytes(content_of(expert)));
      }
    }
    EXPECT_EQ(reader.outstanding(), 0);
  }
}

TEST(Eviction, the_coldest_goes_ties_by_least_recent_use) {
  const std::vector<SlotUse> slots = {{.heat = 3, .last_step = 1, .is_evictable = true},
                                      {.heat = 1, .last_step = 5, .is_evictable = true},
                                      {.heat = 1, .last_step = 4, .is_evictable = true},
                                      {.heat = 0, .last_step = 0, .is_evictable = false}};
  EXPECT_EQ(choose_victim(slots), 2);
  EXPECT_EQ(choose_victim({}), -1);
}

TEST(Eviction, an_old_favourite_is_outlived) {
  const double old_favourite = add_uses(-1e300, 100, 0);
  const double newcomer = add_uses(-1e300, 1, 64 * 7);  // 100 halved seven times is below one
  EXPECT_LT(old_favourite, newcomer);
  EXPECT_GT(old_favourite, add_uses(-1e300, 1, 64 * 6));
}

}  // namespace
}  // namespace glmd
