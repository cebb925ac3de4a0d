// Several disks as one: shares by measured rate, bytes the same as with one disk, and disks that
// fail, come back, or give wrong bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <random>
#include <set>

#include "platform/aligned_memory.h"
#include "storage/io_uring_reader.h"
#include "storage/manifest.h"
#include "storage/replica_set.h"
#include "storage/thread_reader.h"
#include "tests/convert/tiny_checkpoint.h"
#include "tests/support/fault_reader.h"

namespace glmd {
namespace {

constexpr int64_t block = 4096;
constexpr int64_t expert_blocks = 16, expert_count = 8;
constexpr int64_t expert_size = expert_blocks * block;

// A disk that answers one read after the other, and while it hangs none at all: the first is with
// it, the others have not begun.
class HangingDisk : public BlockReader {
 public:
  HangingDisk(const std::string& content, const Clock& clock, const bool& hangs)
      : content_(content), clock_(clock), hangs_(hangs) {}

  void submit(const ReadRequest& request) override {
    if (reads_.empty()) begun_ns_ = clock_.now_ns();
    reads_.push_back(request);
  }
  void promote(uint64_t) override {}
  void cancel(uint64_t tag) override {
    for (size_t i = 1; i < reads_.size(); ++i) {
      if (reads_[i].tag != tag) continue;
      cancelled_.push_back(tag);
      reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
  std::optional<ReadCompletion> wait_for(int64_t) override { return poll(); }
  std::optional<ReadCompletion> poll() override {
    if (!cancelled_.empty()) {
      const uint64_t tag = cancelled_.back();
      cancelled_.pop_back();
      return ReadCompletion{tag, error(ErrorKind::cancelled, "cancelled")};
    }
    if (hangs_ || reads_.empty()) return std::nullopt;
    const ReadRequest request = reads_.front();
    reads_.pop_front();
    begun_ns_ = clock_.now_ns();
    std::memcpy(request.target, content_.data() + request.offset,
                static_cast<size_t>(request.bytes));
    counters_.bytes += request.bytes;
    return ReadCompletion{request.tag, {}};
  }
  int64_t outstanding() const override { return std::ssize(reads_) + std::ssize(cancelled_); }
  ReadCounters counters() const override { return counters_; }
  std::optional<PendingRead> oldest_pending() const override {
    if (reads_.empty()) return std::nullopt;
    const ReadRequest& first = reads_.front();
    return PendingRead{"b/experts.safetensors", first.offset, first.bytes, begun_ns_};
  }

 private:
  const std::string& content_;
  const Clock& clock_;
  const bool& hangs_;
  std::deque<ReadRequest> reads_;
  std::vector<uint64_t> cancelled_;
  int64_t begun_ns_ = 0;
  ReadCounters counters_;
};

// Two or three folders with the same file of experts, each a disk.
class ReplicaSetTest : public testing::Test {
 protected:
  ReplicaSetTest() {
    std::mt19937_64 random(1);
    content_.resize(expert_count * expert_size);
    for (char& byte : content_) byte = static_cast<char>(random());
    memory_ = AlignedMemory::allocate(expert_count * expert_size).value();
  }

  std::string path_of(const std::string& disk) { return folder_ / disk; }

  // A disk whose reader is spoilt as told; `places`: the experts that are there.
  ReplicaSource source(const std::string& disk, const FaultShares& shares = {},
                       std::optional<std::vector<int64_t>> experts = std::nullopt,
                       uint32_t seed = 1, bool by_ring = false) {
    test::write_text(path_of(disk), content_);
    return {.name = disk,
            .open = [=, path = path_of(disk)](ReadSignal& signal) -> Result<ReplicaCopy> {
              ReadQueueOptions options{.segment_bytes = 2 * block};
              options.signal = &signal;
              std::unique_ptr<BlockReader> reader;
              if (by_ring) {
                reader = TRY(IoUringReader::open({path}, 2, options));
              } else {
                reader = TRY(ThreadReader::open({path}, 2, options));
              }
              ReplicaCopy copy;
              copy.reader = std::make_unique<FaultReader>(std::move(reader), shares, seed, &signal);
              copy.file_of = {0};
              if (experts) {
                copy.places.emplace();
                for (const int64_t expert : *experts) copy.places->emplace(0, expert * expert_size);
              }
              return copy;
            }};
  }

  // It cannot be opened while `fails`.
  ReplicaSource source_unless(const bool& fails, const std::string& disk, Error failure) {
    ReplicaSource made = source(disk);
    made.open = [&fails, failure = std::move(failure),
                 open = std::move(made.open)](ReadSignal& signal) -> Result<ReplicaCopy> {
      if (fails) return failure;
      return open(signal);
    };
    return made;
  }
  // It hangs while `hangs_`.
  ReplicaSource hanging_source(const std::string& disk) { return hanging_source(disk, content_); }
  ReplicaSource hanging_source(const std::string& disk, const std::string& content) {
    return {.name = disk, .open = [this, &content](ReadSignal&) -> Result<ReplicaCopy> {
              ReplicaCopy copy;
              copy.reader = std::make_unique<HangingDisk>(content, clock_, hangs_);
              copy.file_of = {0};
              return copy;
            }};
  }

  std::unique_ptr<ReplicaSet> open(std::vector<ReplicaSource> sources) {
    auto set = ReplicaSet::open(std::move(sources), clock_,
                                {.share_bytes_min = block, .retry_pause_ms = 1000});
    EXPECT_TRUE(set.ok()) << set.error().message;
    return std::move(set).value();
  }

  ReadRequest request(int64_t expert, bool is_reread = false) {
    return {.file = 0,
            .offset = expert * expert_size,
            .bytes = expert_size,
            .target = memory_.data() + expert * expert_size,
            .tag = static_cast<uint64_t>(expert),
            .is_reread = is_reread};
  }
  ReadRequest checked_request(int64_t expert, bool is_reread = false) {
    ReadRequest checked = request(expert, is_reread);
    const auto from = static_cast<size_t>(expert * expert_size);
    checked.checksum =
        ReadChecksum{.hash = hash_bytes(std::string_view(content_).substr(from, expert_size)),
                     .file_name = "/container/experts-003.safetensors"};
    return checked;
  }
  // As the cache does: what is wrong is read once more. How many were.
  int64_t read_all_checked(BlockReader& reader) {
    int64_t rereads = 0;
    std::memset(memory_.data(), 0x55, static_cast<size_t>(memory_.size_bytes()));
    for (int64_t expert = 0; expert < expert_count; ++expert) {
      reader.submit(checked_request(expert));
    }
    std::set<int64_t> reread;
    while (reader.outstanding() > 0) {
      const ReadCompletion completion = reader.wait();
      const auto expert = static_cast<int64_t>(completion.tag);
      if (!completion.result.ok() && reread.insert(expert).second) {
        ++rereads;
        reader.submit(checked_request(expert, true));
        continue;
      }
      EXPECT_TRUE(completion.result.ok()) << completion.result.error().message;
      EXPECT_TRUE(is_right(expert));
    }
    return rereads;
  }
  Result<void> read_checked(BlockReader& reader, int64_t expert, bool is_reread = false) {
    reader.submit(checked_request(expert, is_reread));
    return reader.wait().result;
  }
  // One byte of a copy, in the block of an expert.
  void damage(const std::string& disk, int64_t expert, int64_t at_block) {
    const int64_t at = expert * expert_size + at_block * block + 7;
    std::fstream copy(path_of(disk), std::ios::in | std::ios::out | std::ios::binary);
    copy.seekg(at);
    const auto byte = static_cast<char>(copy.get() ^ 1);
    copy.seekp(at);
    copy.put(byte);
  }
  bool is_right(int64_t expert) {
    return std::memcmp(memory_.data() + expert * expert_size,
                       content_.data() + expert * expert_size, expert_size) == 0;
  }
  // Reads all experts and expects every byte.
  void read_all(BlockReader& reader) {
    std::memset(memory_.data(), 0x55, static_cast<size_t>(memory_.size_bytes()));
    for (int64_t expert = 0; expert < expert_count; ++expert) reader.submit(request(expert));
    for (int64_t i = 0; i < expert_count; ++i) {
      const ReadCompletion completion = reader.wait();
      EXPECT_TRUE(completion.result.ok()) << completion.result.error().message;
      EXPECT_TRUE(is_right(static_cast<int64_t>(completion.tag)));
    }
    EXPECT_EQ(reader.outstanding(), 0);
  }

  test::TemporaryFolder folder_;
  std::string content_;
  AlignedMemory memory_;
  ManualClock clock_;
  bool hangs_ = false;
};

TEST_F(ReplicaSetTest, two_disks_share_each_expert_and_give_the_same_bytes) {
  const auto set = open({source("a"), source("b")});
  read_all(*set);
  const std::vector<DiskStatus> disks = set->disks();
  ASSERT_EQ(disks.size(), 2U);
  EXPECT_EQ(disks[0].counters.bytes, expert_count * expert_size / 2);
  EXPECT_EQ(disks[1].counters.bytes, expert_count * expert_size / 2);
  EXPECT_EQ(set->counters().bytes, expert_count * expert_size);
  EXPECT_TRUE(set->take_events().empty());
}

TEST_F(ReplicaSetTest, a_partial_copy_is_asked_only_for_what_it_has) {
  const auto set = open({source("a"), source("b", {}, std::vector<int64_t>{2, 5})});
  read_all(*set);
  EXPECT_GT(set->disks()[1].counters.bytes, 0);
  EXPECT_LE(set->disks()[1].counters.bytes, 2 * expert_size);
}

TEST_F(ReplicaSetTest, a_disk_that_dies_mid_run_costs_no_request_and_is_said_once) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto set = open({source("a", {.late = 0.3}, std::nullopt, seed),
                           source("b", {.late = 0.3, .dies_after = seed % 9}, std::nullopt, seed)});
    read_all(*set);
    read_all(*set);
    const std::vector<std::string> events = set->take_events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_THAT(events[0], testing::AllOf(testing::StartsWith("b: "), testing::HasSubstr("wanted"),
                                          testing::EndsWith("trying again in 1 s")));
    EXPECT_FALSE(set->disks()[1].is_in_use);
  }
}

TEST_F(ReplicaSetTest, the_first_disk_may_die_too) {
  const auto set = open({source("a", {.dies_after = 3}), source("b")});
  read_all(*set);
  read_all(*set);
  EXPECT_FALSE(set->disks()[0].is_in_use);
}

TEST_F(ReplicaSetTest, a_file_cut_under_a_disk_costs_no_request) {
  const auto set = open({source("a"), source("b")});
  read_all(*set);
  test::write_text(path_of("b"), content_.substr(0, block));
  read_all(*set);
  EXPECT_THAT(set->take_events(), testing::ElementsAre(testing::HasSubstr("the file is short")));
}

TEST_F(ReplicaSetTest, a_disk_is_tried_again_after_a_pause) {
  const auto set = open({source("a"), source("b")});
  test::write_text(path_of("b"), "");
  read_all(*set);
  EXPECT_EQ(set->take_events().size(), 1U);
  test::write_text(path_of("b"), content_);
  read_all(*set);  // not yet
  EXPECT_FALSE(set->disks()[1].is_in_use);
  const int64_t before = set->disks()[1].counters.bytes;
  clock_.advance_ms(1000);
  read_all(*set);
  EXPECT_THAT(set->take_events(), testing::ElementsAre("b: trying this disk again"));
  EXPECT_TRUE(set->disks()[1].is_in_use);
  EXPECT_GT(set->disks()[1].counters.bytes, before);
}

TEST_F(ReplicaSetTest, a_disk_missing_at_the_start_is_left_out_until_it_is_there) {
  ReplicaSource missing = source("b");
  ASSERT_EQ(::unlink(path_of("b").c_str()), 0);
  const auto set = open({source("a"), missing});
  EXPECT_EQ(set->take_events().size(), 1U);
  read_all(*set);
  test::write_text(path_of("b"), content_);
  clock_.advance_ms(1000);
  read_all(*set);
  EXPECT_GT(set->disks()[1].counters.bytes, 0);
}

TEST_F(ReplicaSetTest, a_disk_damaged_at_the_start_is_left_out_until_it_is_mended) {
  bool is_damaged = true;
  const auto set = open(
      {source("a"), source_unless(is_damaged, "b",
                                  error(ErrorKind::corrupt, "b/mirror.json: not a JSON text"))});
  EXPECT_THAT(set->take_events(),
              testing::ElementsAre("b/mirror.json: not a JSON text; reading from the other disks, "
                                   "trying again in 1 s"));
  is_damaged = false;
  clock_.advance_ms(1000);
  read_all(*set);
  EXPECT_GT(set->disks()[1].counters.bytes, 0);
}

TEST_F(ReplicaSetTest, a_disk_that_hangs_holds_up_only_what_it_has_begun) {
  const auto set = open({source("a"), hanging_source("b")});
  hangs_ = true;
  std::memset(memory_.data(), 0x55, static_cast<size_t>(memory_.size_bytes()));
  for (int64_t expert = 0; expert < expert_count; ++expert) set->submit(request(expert));
  EXPECT_FALSE(set->wait_for(0)) << "b has a part of each";
  EXPECT_TRUE(set->stranded().empty()) << "b may answer any time";
  clock_.advance_ms(PendingRead::hanging_ms);
  for (int64_t expert = 1; expert < expert_count; ++expert) {
    const ReadCompletion completion = set->wait();
    EXPECT_TRUE(completion.result.ok());
    EXPECT_NE(completion.tag, 0U);
    EXPECT_TRUE(is_right(static_cast<int64_t>(completion.tag)));
  }
  EXPECT_FALSE(set->wait_for(0));
  EXPECT_THAT(set->stranded(), testing::ElementsAre(0));
  EXPECT_THAT(set->take_events(),
              testing::ElementsAre(fmt::format(
                  "b/experts.safetensors: read of {} bytes at {}: no answer for 5 s; reading from "
                  "the other disks, trying again in 1 s",
                  expert_size / 2, expert_size / 2)));
  EXPECT_FALSE(set->disks()[1].is_in_use);
  EXPECT_EQ(set->oldest_pending()->path, "b/experts.safetensors");

  clock_.advance_ms(60'000);  // nothing new goes there, and it is not opened again
  for (int64_t expert = 1; expert < expert_count; ++expert) {
    set->submit(request(expert));
    EXPECT_EQ(set->wait().tag, static_cast<uint64_t>(expert));
  }
  EXPECT_EQ(set->disks()[1].counters.bytes, 0);
  EXPECT_TRUE(set->take_events().empty());

  ReadRequest again = request(0);  // elsewhere, beside the one that hangs
  again.tag = 100;
  again.target = memory_.data() + expert_size;
  set->submit(again);
  EXPECT_EQ(set->wait().tag, 100U);
  EXPECT_EQ(std::memcmp(again.target, content_.data(), expert_size), 0);
  EXPECT_THAT(set->stranded(), testing::ElementsAre(0));

  hangs_ = false;
  EXPECT_EQ(set->wait().tag, 0U);
  EXPECT_TRUE(is_right(0));
  set->submit(request(1));
  EXPECT_TRUE(set->wait().result.ok());
  EXPECT_THAT(set->take_events(), testing::ElementsAre("b: trying this disk again"));
}

TEST_F(ReplicaSetTest, what_only_a_disk_that_hangs_has_is_waited_for) {
  const auto set = open({hanging_source("a"), source("b", {}, std::vector<int64_t>{0, 1, 2, 3})});
  hangs_ = true;
  for (int64_t expert = 4; expert < expert_count; ++expert) set->submit(request(expert));
  clock_.advance_ms(PendingRead::hanging_ms);
  EXPECT_FALSE(set->wait_for(0));
  EXPECT_TRUE(set->stranded().empty());
  EXPECT_EQ(set->take_events().size(), 1U);
  hangs_ = false;
  for (int64_t expert = 4; expert < expert_count; ++expert) {
    const ReadCompletion completion = set->wait();
    EXPECT_TRUE(completion.result.ok());
    EXPECT_TRUE(is_right(static_cast<int64_t>(completion.tag)));
  }
}

TEST_F(ReplicaSetTest, a_read_that_is_cancelled_while_a_disk_hangs_ends_so) {
  const auto set = open({source("a"), hanging_source("b")});
  hangs_ = true;
  set->submit(request(0));
  set->submit(request(1));
  set->cancel(1);
  clock_.advance_ms(PendingRead::hanging_ms);
  const ReadCompletion completion = set->wait();
  EXPECT_EQ(completion.tag, 1U);
  EXPECT_EQ(completion.result.error().kind, ErrorKind::cancelled);
  hangs_ = false;
  EXPECT_TRUE(set->wait().result.ok());
  EXPECT_TRUE(is_right(0));
}

TEST_F(ReplicaSetTest, a_disk_that_cannot_be_opened_is_tried_after_pauses_that_double) {
  ReplicaSource missing = source("b");
  int tries = 0;
  missing.open = [&](ReadSignal&) -> Result<ReplicaCopy> {
    ++tries;
    return error(ErrorKind::unavailable, "b: not there");
  };
  const auto set = open({source("a"), missing});
  std::vector<int64_t> seconds;  // of each try
  for (int64_t second = 0; second < 70; ++second) {
    const int before = tries;
    set->submit(request(0));
    EXPECT_TRUE(set->wait().result.ok());
    if (tries > before) seconds.push_back(second);
    clock_.advance_ms(1000);
  }
  EXPECT_THAT(seconds, testing::ElementsAre(1, 3, 7, 15, 31, 47, 63));
  EXPECT_EQ(set->take_events().size(), 1U);
}

TEST_F(ReplicaSetTest, where_all_disks_fail_the_error_is_the_disks_own) {
  const auto set = open({source("a", {.dies_after = 0}), source("b", {.dies_after = 0})});
  set->submit(request(0));
  const ReadCompletion completion = set->wait();
  ASSERT_FALSE(completion.result.ok());
  EXPECT_THAT(completion.result.error().message, testing::HasSubstr("spoilt by the test"));
  EXPECT_EQ(set->outstanding(), 0);
}

TEST_F(ReplicaSetTest, a_reread_tells_which_copy_is_wrong_and_it_is_not_read_again) {
  const auto set = open({source("a"), source("b")});
  damage("b", 0, expert_blocks - 1);  // b is asked for the second half
  const Result<void> wrong = read_checked(*set, 0);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().kind, ErrorKind::corrupt);
  EXPECT_FALSE(is_right(0));
  EXPECT_TRUE(set->take_events().empty()) << "it may be either";
  ASSERT_TRUE(read_checked(*set, 0, true).ok());
  EXPECT_TRUE(is_right(0));
  EXPECT_THAT(set->take_events(),
              testing::ElementsAre("b: wrong bytes of 1 expert, read from the other disks"));
  EXPECT_EQ(set->disks()[0].counters.failures, 0);
  EXPECT_EQ(set->disks()[1].counters.failures, 1);
  EXPECT_TRUE(set->disks()[1].is_in_use);
  const int64_t before = set->disks()[1].counters.bytes;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(read_checked(*set, 0).ok());
  EXPECT_EQ(set->disks()[1].counters.bytes, before);
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_GT(set->disks()[1].counters.bytes, before) << "its other experts are sound";
}

TEST_F(ReplicaSetTest, a_mirror_that_is_wholly_wrong_fails_no_request) {
  const auto set = open({source("a"), source("b")});
  test::write_text(path_of("b"), std::string(content_.size(), '\0'));
  EXPECT_EQ(read_all_checked(*set), expert_count);
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_EQ(set->disks()[1].counters.failures, expert_count);
  EXPECT_THAT(set->take_events(),
              testing::ElementsAre("b: wrong bytes of 1 expert, read from the other disks",
                                   "b: wrong bytes of 2 experts, read from the other disks",
                                   "b: wrong bytes of 4 experts, read from the other disks",
                                   "b: wrong bytes of 8 experts, read from the other disks"));
}

TEST_F(ReplicaSetTest, the_containers_own_disk_may_be_the_wrong_one) {
  const auto set = open({source("a"), source("b")});
  test::write_text(path_of("a"), std::string(content_.size(), '\0'));
  EXPECT_EQ(read_all_checked(*set), expert_count);
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_EQ(set->disks()[0].counters.failures, expert_count);
  EXPECT_EQ(set->disks()[1].counters.failures, 0);
}

TEST_F(ReplicaSetTest, of_three_suspects_reads_find_the_wrong_one) {
  const auto set = open({source("a"), source("b"), source("c")});
  damage("c", 0, expert_blocks - 1);
  ASSERT_FALSE(read_checked(*set, 0).ok());
  ASSERT_TRUE(read_checked(*set, 0, true).ok());
  EXPECT_TRUE(set->take_events().empty()) << "b or c";
  ASSERT_TRUE(read_checked(*set, 0).ok());
  EXPECT_TRUE(is_right(0));
  EXPECT_THAT(set->take_events(), testing::ElementsAre(testing::StartsWith("c: wrong bytes of 1")));
}

TEST_F(ReplicaSetTest, where_no_disk_has_it_right_every_copy_is_named_and_asked_again_later) {
  const auto set = open({source("a"), source("b")});
  damage("a", 3, 1);
  damage("b", 3, 2);
  ASSERT_FALSE(read_checked(*set, 3).ok());
  const Result<void> wrong = read_checked(*set, 3, true);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().kind, ErrorKind::corrupt);
  const std::string place =
      fmt::format("checksum of {} bytes at {}: wanted ", expert_size, 3 * expert_size);
  EXPECT_THAT(wrong.error().message,
              testing::AllOf(testing::StartsWith("no disk has it right: "),
                             testing::HasSubstr("a/experts-003.safetensors: " + place),
                             testing::HasSubstr("; b/experts-003.safetensors: " + place)));
  damage("b", 3, 2);  // mended
  read_all_checked(*set);
  EXPECT_TRUE(read_checked(*set, 3).ok());
  EXPECT_EQ(set->disks()[0].counters.failures, 1);
  EXPECT_EQ(set->disks()[1].counters.failures, 1);
}

TEST_F(ReplicaSetTest, a_wrong_copy_and_a_disk_that_fails_are_both_named) {
  const auto set = open({source("a"), source("b")});
  damage("a", 3, 1);
  test::write_text(path_of("b"), "");
  EXPECT_FALSE(read_checked(*set, 3).ok());
  const Result<void> wrong = read_checked(*set, 3, true);
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message,
              testing::AllOf(testing::HasSubstr("a/experts-003.safetensors: checksum"),
                             testing::HasSubstr(path_of("b") + ": read at ")));
}

TEST_F(ReplicaSetTest, a_disk_that_was_opened_again_is_trusted_again) {
  const auto set = open({source("a"), source("b")});
  damage("b", 0, expert_blocks - 1);
  EXPECT_EQ(read_all_checked(*set), 1);
  EXPECT_EQ(set->disks()[1].counters.failures, 1);
  test::write_text(path_of("b"), "");
  read_all_checked(*set);
  test::write_text(path_of("b"), content_);
  clock_.advance_ms(1000);
  EXPECT_TRUE(read_checked(*set, 1).ok());
  const int64_t before = set->disks()[1].counters.bytes;
  EXPECT_TRUE(read_checked(*set, 0).ok());
  EXPECT_GT(set->disks()[1].counters.bytes, before);
}

TEST_F(ReplicaSetTest, a_disk_with_wrong_copies_is_opened_anew_and_can_then_stand_for_the_other) {
  const auto set = open({source("a"), source("b")});
  test::write_text(path_of("b"), std::string(content_.size(), '\0'));
  EXPECT_EQ(read_all_checked(*set), expert_count);
  set->take_events();
  ASSERT_EQ(::unlink(path_of("b").c_str()), 0);
  test::write_text(path_of("b"), content_);  // staged anew: another file
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_TRUE(set->take_events().empty()) << "not yet";
  clock_.advance_ms(1000);
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_THAT(set->take_events(), testing::ElementsAre("b: trying its wrong copies again"));
  test::write_text(path_of("a"), "");
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_EQ(set->disks()[1].counters.failures, expert_count);
}

TEST_F(ReplicaSetTest, a_disk_that_stays_wrong_is_opened_anew_after_pauses_that_double) {
  ReplicaSource wrong = source("b");
  int64_t opens = 0;
  wrong.open = [&opens, open = wrong.open](ReadSignal& signal) {
    ++opens;
    return open(signal);
  };
  const auto set = open({source("a"), wrong});
  damage("b", 0, expert_blocks - 1);
  std::vector<int64_t> seconds;  // of each try
  for (int64_t second = 0; second < 70; ++second) {
    const int64_t before = opens;
    read_all_checked(*set);
    if (opens > before) seconds.push_back(second);
    clock_.advance_ms(1000);
  }
  EXPECT_THAT(seconds, testing::ElementsAre(1, 3, 7, 15, 31, 47, 63));
  damage("b", 0, expert_blocks - 1);  // mended; and in order for long enough
  for (const int64_t pause_ms : {16'000, 16'000}) {
    clock_.advance_ms(pause_ms);
    read_all_checked(*set);
  }
  set->take_events();
  damage("b", 0, expert_blocks - 1);
  read_all_checked(*set);
  clock_.advance_ms(1000);
  read_all_checked(*set);
  EXPECT_THAT(set->take_events(),
              testing::ElementsAre("b: wrong bytes of 1 expert, read from the other disks",
                                   "b: trying its wrong copies again",
                                   "b: wrong bytes of 1 expert, read from the other disks"));
}

TEST_F(ReplicaSetTest, a_disk_with_wrong_copies_whose_folder_is_gone_gives_what_it_has_right) {
  bool is_gone = false;
  const auto set =
      open({source("a"), source_unless(is_gone, "b", error(ErrorKind::not_found, "b: not there"))});
  damage("b", 0, expert_blocks - 1);
  EXPECT_EQ(read_all_checked(*set), 1);
  set->take_events();
  is_gone = true;
  clock_.advance_ms(1000);
  const int64_t before = set->disks()[1].counters.bytes;
  EXPECT_EQ(read_all_checked(*set), 0);
  EXPECT_GT(set->disks()[1].counters.bytes, before);
  EXPECT_TRUE(set->take_events().empty());
}

TEST_F(ReplicaSetTest, a_disk_is_not_opened_anew_while_any_of_it_is_under_way) {
  std::string spoilt = content_;
  spoilt[expert_size - 1] ^= 1;
  const auto set = open({source("a"), hanging_source("b", spoilt)});
  EXPECT_FALSE(read_checked(*set, 0).ok());
  EXPECT_TRUE(read_checked(*set, 0, true).ok());
  set->take_events();
  hangs_ = true;
  set->submit(request(1));
  clock_.advance_ms(1000);
  set->submit(request(2));
  EXPECT_EQ(set->wait().tag, 2U) << "nothing new goes to b";
  EXPECT_TRUE(set->take_events().empty());
  hangs_ = false;
  EXPECT_EQ(set->wait().tag, 1U);
  EXPECT_TRUE(is_right(1));
  EXPECT_TRUE(read_checked(*set, 3).ok());
  EXPECT_THAT(set->take_events(), testing::ElementsAre("b: trying its wrong copies again"));
}

// Places on one, two or all of the disks but one are damaged: which one is sound differs by expert.
TEST_F(ReplicaSetTest, what_one_disk_has_right_is_delivered_right) {
  const bool has_ring = IoUringReader::probe().ok();
  int64_t reread_count = 0;
  for (uint32_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<ReplicaSource> sources;
    const size_t disk_count = 2 + seed % 2;
    for (size_t disk = 0; disk < disk_count; ++disk) {
      sources.push_back(source(std::string(1, static_cast<char>('a' + disk)), {.late = 0.3},
                               std::nullopt, seed, has_ring && seed % 4 < 2));
    }
    std::vector<int64_t> damaged(disk_count, 0);
    for (int64_t expert = 0; expert < expert_count; ++expert) {
      const size_t sound = random() % disk_count;
      for (size_t disk = 0; disk < disk_count; ++disk) {
        if (disk == sound || random() % 2 == 0) continue;
        damage(sources[disk].name, expert, random() % expert_blocks);
        ++damaged[disk];
      }
    }
    const auto set = open(sources);
    for (int round = 0; round < 4; ++round) reread_count += read_all_checked(*set);
    for (size_t disk = 0; disk < disk_count; ++disk) {
      EXPECT_LE(set->disks()[disk].counters.failures, damaged[disk]) << "a sound copy is accused";
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(reread_count, 1000);
}

TEST_F(ReplicaSetTest, a_wrong_copy_at_the_start_is_an_error) {
  ReplicaSource wrong = source("b");
  wrong.open = [](ReadSignal&) -> Result<ReplicaCopy> {
    return error(ErrorKind::bad_input, "mirror b: identity: wanted 1, got 2");
  };
  const auto set = ReplicaSet::open({source("a"), wrong}, clock_);
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().message, "mirror b: identity: wanted 1, got 2");
}

TEST_F(ReplicaSetTest, faults_on_one_disk_never_reach_a_request) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto set =
        open({source("a", {.late = 0.5}, std::nullopt, seed),
              source("b", {.late = 0.5, .short_read = 0.2, .failed = 0.2}, std::nullopt, seed)});
    for (int round = 0; round < 3; ++round) {
      read_all(*set);
      clock_.advance_ms(100'000);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace glmd
