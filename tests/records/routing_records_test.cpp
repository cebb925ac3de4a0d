#include "records/routing_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "platform/file.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::HasSubstr;

const std::string embedded_model = GLMD_BINARY_DIR "/share/glmd/models/mini";

const RoutingShape shape{.identity = 7, .experts = 4, .chosen = 2, .expert_bytes = {4096}};

void route(RoutingObserver& observer, int32_t layer) {
  observer.routed({.layer = layer,
                   .positions = std::vector<uint32_t>{0},
                   .experts = std::vector<uint16_t>{0, 1}});
}

TEST(UsageHistorySaver, the_end_saves_what_changed_and_nothing_else) {
  const TemporaryFolder folder;
  UsageHistory history(shape);
  { const UsageHistorySaver saver(history, folder / "history", std::chrono::hours(1)); }
  EXPECT_FALSE(path_exists(folder / "history"));
  route(history, 0);
  { const UsageHistorySaver saver(history, folder / "history", std::chrono::hours(1)); }
  UsageHistory again(shape);
  EXPECT_TRUE(again.load(folder / "history").ok());
  EXPECT_EQ(again.counts(), history.counts());
}

TEST(UsageHistorySaver, saves_happen_while_it_runs) {
  const TemporaryFolder folder;
  UsageHistory history(shape);
  const UsageHistorySaver saver(history, folder / "history", std::chrono::milliseconds(1));
  route(history, 0);
  while (!path_exists(folder / "history")) std::this_thread::yield();
}

TEST(UsageHistorySaver, a_folder_that_is_gone_is_survived) {
  UsageHistory history(shape);
  route(history, 0);
  const UsageHistorySaver saver(history, "/nowhere/history", std::chrono::hours(1));
}

class Records : public testing::Test {
 protected:
  void SetUp() override { settings_.state_directory = folder_ / "."; }
  TemporaryFolder folder_;
  Settings settings_;
  Container container_ = Container::open(embedded_model).value();
  std::string history_ = folder_ / "usage-history";
};

TEST_F(Records, a_history_is_kept_from_one_run_to_the_next) {
  std::vector<float> counts;
  {
    const RoutingRecords records = RoutingRecords::open(settings_, container_).value();
    ASSERT_EQ(records.observers().size(), 1U);
    route(*records.observers()[0], 1);
    counts = records.history()->counts();
  }
  const RoutingRecords records = RoutingRecords::open(settings_, container_).value();
  EXPECT_EQ(records.history()->counts(), counts);
}

TEST_F(Records, a_damaged_history_is_dropped_and_begun_anew) {
  std::ofstream(history_) << std::string("GLMDUSES\1\0\0\0 and nonsense as long as a header", 46);
  {
    const RoutingRecords records = RoutingRecords::open(settings_, container_).value();
    for (const float count : records.history()->counts()) ASSERT_EQ(count, 0);
    route(*records.observers()[0], 1);
  }
  UsageHistory again(routing_shape(container_));
  EXPECT_TRUE(again.load(history_).ok());
}

TEST_F(Records, a_file_that_is_no_history_is_not_touched) {
  const std::string content = "somebody's notes, as long as a header at least";
  std::ofstream(history_) << content;
  {
    const RoutingRecords records = RoutingRecords::open(settings_, container_).value();
    EXPECT_TRUE(records.observers().empty());
    EXPECT_TRUE(records.usage_prior().empty());
  }
  EXPECT_EQ(read_file(history_, 1000).value(), content);
}

TEST_F(Records, what_is_no_file_or_a_newer_versions_is_not_touched_either) {
  const std::string elsewhere = folder_ / "elsewhere";
  const auto is_left_alone = [&] {
    struct stat before {
    }, after{};
    EXPECT_EQ(lstat(history_.c_str(), &before), 0);
    {
      const RoutingRecords records = RoutingRecords::open(settings_, container_).value();
      EXPECT_TRUE(records.observers().empty());
    }
    EXPECT_EQ(lstat(history_.c_str(), &after), 0);
    return before.st_ino == after.st_ino && before.st_mode == after.st_mode;
  };
  std::ofstream(history_) << std::string("GLMDUSES\2\0\0\0 and what only it knows to read", 44);
  EXPECT_TRUE(is_left_alone());
  std::filesystem::rename(history_, elsewhere);
  ASSERT_EQ(symlink(elsewhere.c_str(), history_.c_str()), 0);
  EXPECT_TRUE(is_left_alone());
  std::filesystem::remove(history_);
  ASSERT_EQ(mkfifo(history_.c_str(), 0600), 0);
  EXPECT_TRUE(is_left_alone());
  std::filesystem::remove(history_);
  std::filesystem::create_directory(history_);
  EXPECT_TRUE(is_left_alone());
}

TEST_F(Records, of_two_daemons_the_first_saves_and_the_second_says_so_once) {
  std::vector<float> counts;
  {
    const RoutingRecords first = RoutingRecords::open(settings_, container_).value();
    route(*first.observers()[0], 1);
    counts = first.history()->counts();
    testing::internal::CaptureStderr();
    {
      const RoutingRecords second = RoutingRecords::open(settings_, container_).value();
      ASSERT_EQ(second.observers().size(), 1U);
      for (int i = 0; i < 5; ++i) route(*second.observers()[0], 1);
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("usage history: " + (folder_ / "./usage-history") +
                          ": another daemon saves it: this one does not, continuing"));
    EXPECT_FALSE(path_exists(history_));
  }
  const RoutingRecords records = RoutingRecords::open(settings_, container_).value();
  EXPECT_EQ(records.history()->counts(), counts);
}

TEST_F(Records, none_is_kept_when_it_is_off_or_has_no_place) {
  settings_.keeps_usage_history = false;
  EXPECT_TRUE(RoutingRecords::open(settings_, container_).value().observers().empty());
  settings_.keeps_usage_history = true;
  settings_.state_directory.reset();
  EXPECT_TRUE(RoutingRecords::open(settings_, container_).value().observers().empty());
}

TEST_F(Records, a_trace_that_cannot_be_begun_is_an_error) {
  settings_.trace_routing = folder_ / "no/trace";
  const Result<RoutingRecords> records = RoutingRecords::open(settings_, container_);
  ASSERT_FALSE(records.ok());
  EXPECT_THAT(records.error().message, HasSubstr("trace-routing: "));
  EXPECT_THAT(records.error().message, HasSubstr("no/trace: open: No such file or directory"));
}

}  // namespace
}  // namespace glmd
