#include "experts/usage_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "platform/file.h"
#include "platform/random.h"
#include "storage/manifest.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RoutingShape shape_of(uint64_t identity) {
  return {.identity = identity, .experts = 4, .chosen = 2, .expert_bytes = {0, 4096, 4096}};
}

void route(UsageHistory& history, int32_t layer, const std::vector<uint16_t>& experts) {
  history.routed(
      {.layer = layer, .positions = std::vector<uint32_t>(experts.size() / 2), .experts = experts});
}

std::string content_of(const std::string& path) {
  return read_file(path, 1 << 20).value();
}

// Replaces the checksum by the right one.
std::string sealed(std::string content) {
  const size_t end = content.size() - 8;
  const uint64_t hash = hash_bytes({reinterpret_cast<const uint8_t*>(content.data()), end});
  std::memcpy(content.data() + end, &hash, sizeof hash);
  return content;
}

class UsageHistoryFile : public testing::Test {
 protected:
  void SetUp() override {
    UsageHistory history(shape_of(7));
    route(history, 1, {0, 1});
    route(history, 2, {3, 2, 3, 1});
    EXPECT_TRUE(history.save(path_).value());
  }
  std::string failure_of(const std::string& content) {
    std::ofstream(path_) << content;
    UsageHistory history(shape_of(7));
    route(history, 1, {2, 3});
    const std::vector<float> before = history.counts();
    const Result<void> loaded = history.load(path_);
    if (loaded.ok()) return "";
    EXPECT_EQ(history.counts(), before);
    EXPECT_THAT(loaded.error().message, HasSubstr(path_));
    return loaded.error().message;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "usage-history";
};

TEST_F(UsageHistoryFile, what_was_saved_is_loaded) {
  UsageHistory history(shape_of(7));
  ASSERT_TRUE(history.load(path_).ok());
  const std::vector<float> counts = history.counts();
  EXPECT_THAT(counts, ElementsAre(1, 1, 0, 0, 0, 1, 1, 2));
}

TEST_F(UsageHistoryFile, a_missing_file_is_told_apart) {
  UsageHistory history(shape_of(7));
  const Result<void> loaded = history.load(folder_ / "none");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::not_found);
}

TEST_F(UsageHistoryFile, another_models_history_is_refused_with_both_identities) {
  UsageHistory history(shape_of(8));
  const Result<void> loaded = history.load(path_);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message,
              HasSubstr("wanted identity 0000000000000008, got 0000000000000007"));
}

TEST_F(UsageHistoryFile, a_file_cut_or_extended_anywhere_is_refused) {
  const std::string good = content_of(path_);
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_NE(failure_of(good.substr(0, bytes)), "") << bytes;
  }
  EXPECT_THAT(failure_of(good + "x"), HasSubstr("size: wanted 72 bytes, got 73"));
}

TEST_F(UsageHistoryFile, any_flipped_bit_is_refused) {
  const std::string good = content_of(path_);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(failure_of(bad), "") << bit;
  }
}

TEST_F(UsageHistoryFile, huge_counts_and_shapes_are_refused_even_with_a_right_checksum) {
  const std::string good = content_of(path_);
  const auto with = [&](size_t offset, auto value) {
    std::string bad = good;
    std::memcpy(bad.data() + offset, &value, sizeof value);
    return sealed(bad);
  };
  EXPECT_THAT(failure_of(with(8, uint32_t{2})), HasSubstr("version: wanted 1, got 2"));
  EXPECT_THAT(failure_of(with(12, uint32_t{0xFFFFFFFF})), HasSubstr("got 4294967295 x 4"));
  EXPECT_THAT(failure_of(with(16, uint32_t{0xFFFFFFFF})), HasSubstr("got 2 x 4294967295"));
  for (const float count : {-1.0F, 2e9F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(failure_of(with(32, count)), HasSubstr("a count: wanted 0 to 1000000000"));
  }
  EXPECT_EQ(failure_of(with(32, 1e9F)), "");
}

TEST_F(UsageHistoryFile, nothing_new_writes_nothing) {
  UsageHistory history(shape_of(7));
  ASSERT_TRUE(history.load(path_).ok());
  EXPECT_FALSE(history.save(folder_ / "other").value());
  EXPECT_FALSE(path_exists(folder_ / "other"));
  route(history, 1, {0, 1});
  EXPECT_TRUE(history.save(folder_ / "other").value());
  EXPECT_FALSE(history.save(folder_ / "other").value());
}

TEST_F(UsageHistoryFile, a_failed_save_leaves_the_old_file_and_is_tried_again) {
  const std::string before = content_of(path_);
  UsageHistory history(shape_of(7));
  route(history, 1, {0, 1});
  std::filesystem::create_directory(path_ + ".new");
  const Result<bool> saved = history.save(path_);
  ASSERT_FALSE(saved.ok());
  EXPECT_THAT(saved.error().message, HasSubstr("File exists"));
  EXPECT_EQ(content_of(path_), before);
  std::filesystem::remove(path_ + ".new");
  EXPECT_TRUE(history.save(path_).value());
}

TEST(UsageHistory, an_old_favourite_is_outlived) {
  UsageHistory history(shape_of(7));
  for (int i = 0; i < 8; ++i) route(history, 1, {0, 0});
  const auto rows = static_cast<size_t>(history_half_life_tokens);
  history.routed({.layer = 1,
                  .positions = std::vector<uint32_t>(rows),
                  .experts = std::vector<uint16_t>(12, 1)});
  const std::vector<float> counts = history.counts();
  EXPECT_NEAR(counts[0], 8, 0.01);
  EXPECT_NEAR(counts[1], 12, 0.01);
}

TEST(UsageHistory, counts_stay_finite_over_very_many_tokens) {
  UsageHistory history(shape_of(7));
  const std::vector<uint32_t> positions(1 << 20);
  for (int i = 0; i < 100; ++i) {
    history.routed({.layer = 1, .positions = positions, .experts = std::vector<uint16_t>{2, 3}});
  }
  EXPECT_THAT(history.counts(), ElementsAre(0, 0, 1, 1, 0, 0, 0, 0));
}

TEST(UsagePrior, every_layer_weighs_the_same_few_tokens) {
  const std::vector<float> counts = {300, 100, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0};
  EXPECT_THAT(usage_prior(counts, 4, 2, 4), ElementsAre(6, 2, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0));
}

// A file may say anything: what came out infinite would never be evicted.
TEST(UsagePrior, stays_finite_for_the_smallest_counts) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_THAT(usage_prior(std::vector<float>{least, least, 0, 0}, 4, 2, 4),
              ElementsAre(4, 4, 0, 0));
}

std::vector<ExpertExtent> extents_of(int32_t count, int64_t bytes) {
  std::vector<ExpertExtent> extents;
  for (int32_t i = 0; i < count; ++i) {
    ExpertExtent& extent = extents.emplace_back();
    extent.file = i % 2;
    extent.offset = i * bytes;
    extent.bytes = bytes;
  }
  return extents;
}

TEST(WarmStart, the_most_used_that_fit_are_read_in_the_order_of_the_disk) {
  const std::vector<float> counts = {5, 1, 9, 0, 7, 8};
  const auto extents = extents_of(6, 100);
  EXPECT_THAT(warm_start_order(counts, extents, 399), ElementsAre(2, 4, 5));
  EXPECT_THAT(warm_start_order(counts, extents, 10000), ElementsAre(0, 2, 4, 1, 5));
  EXPECT_THAT(warm_start_order(counts, extents, 99), ElementsAre());
  EXPECT_THAT(warm_start_order({}, extents, 10000), ElementsAre());
}

TEST(WarmStart, groups_go_from_the_most_used_on) {
  std::vector<float> counts(1000);
  SplitMix random(3);
  for (float& count : counts) count = static_cast<float>(random.below(1 << 20));
  const auto extents = extents_of(1000, 1);
  const std::vector<int32_t> order = warm_start_order(counts, extents, 500);
  ASSERT_EQ(order.size(), 500U);
  for (size_t group = 64; group < order.size(); group += 64) {
    float coldest_before = 1 << 20, hottest_after = 0;
    for (size_t i = 0; i < group; ++i) coldest_before = std::min(coldest_before, counts[order[i]]);
    for (size_t i = group; i < order.size(); ++i) {
      hottest_after = std::max(hottest_after, counts[order[i]]);
    }
    EXPECT_GE(coldest_before, hottest_after);
  }
}

}  // namespace
}  // namespace glmd
