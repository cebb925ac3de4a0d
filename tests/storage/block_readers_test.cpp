// What every block reader promises, over all of them: each request completes exactly once, with its
// bytes or an error that names the place, whatever is promoted, cancelled or destroyed meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "platform/aligned_memory.h"
#include "storage/io_uring_reader.h"
#include "storage/manifest.h"
#include "storage/reader_choice.h"
#include "storage/replica_set.h"
#include "storage/thread_reader.h"
#include "tests/convert/tiny_checkpoint.h"
#include "tests/support/fault_reader.h"
#include "tests/support/refused_call.h"

namespace glmd {
namespace {

using test::TemporaryFolder;
using test::write_text;

constexpr int64_t block = 4096;
constexpr int64_t file_blocks = 64;

// Every 8 bytes say where they stand.
std::string content_of(int64_t file, int64_t bytes) {
  std::string content(static_cast<size_t>(bytes), '\0');
  for (int64_t at = 0; at + 8 <= bytes; at += 8) {
    const int64_t place = file << 56 | at;
    std::memcpy(content.data() + at, &place, sizeof place);
  }
  return content;
}

struct ReaderCase {
  const char* name;
  std::function<Result<std::unique_ptr<BlockReader>>(
      const std::vector<std::string>& paths, const ReadQueueOptions& options, uint32_t seed)>
      open;
  bool needs_ring = false;
};

void PrintTo(const ReaderCase& reader, std::ostream* out) {
  *out << reader.name;
}

template <typename Reader>
Result<std::unique_ptr<BlockReader>> as_reader(Result<std::unique_ptr<Reader>> reader) {
  return std::unique_ptr<BlockReader>(TRY(std::move(reader)));
}

ReaderCase thread_case(const char* name, int threads) {
  return {.name = name, .open = [threads](const auto& paths, const auto& options, uint32_t) {
            return as_reader(ThreadReader::open(paths, threads, options));
          }};
}

ReaderCase ring_case(const char* name, int in_flight_max) {
  return {.name = name,
          .open =
              [in_flight_max](const auto& paths, const auto& options, uint32_t) {
                return as_reader(IoUringReader::open(paths, in_flight_max, options));
              },
          .needs_ring = true};
}

ReaderCase late_case() {
  return {.name = "late_threads",
          .open = [](const auto& paths, const auto& options,
                     uint32_t seed) -> Result<std::unique_ptr<BlockReader>> {
            return std::unique_ptr<BlockReader>(std::make_unique<FaultReader>(
                TRY(ThreadReader::open(paths, 3, options)), FaultShares{.late = 0.5}, seed));
          }};
}

// Two disks with the same files; small requests are shared too.
ReaderCase replica_case() {
  return {.name = "two_disks",
          .open = [](const auto& paths, const auto& options,
                     uint32_t seed) -> Result<std::unique_ptr<BlockReader>> {
            static const SteadyClock clock;
            const auto source = [=](const char* name) {
              return ReplicaSource{.name = name,
                                   .open = [=](ReadSignal& signal) -> Result<ReplicaCopy> {
                                     ReadQueueOptions with_signal = options;
                                     with_signal.signal = &signal;
                                     ReplicaCopy copy;
                                     copy.reader = std::make_unique<FaultReader>(
                                         TRY(ThreadReader::open(paths, 2, with_signal)),
                                         FaultShares{.late = 0.2}, seed, &signal);
                                     for (size_t i = 0; i < paths.size(); ++i) {
                                       copy.file_of.push_back(static_cast<int32_t>(i));
                                     }
                                     return copy;
                                   }};
            };
            return as_reader(ReplicaSet::open({source("first"), source("second")}, clock,
                                              {.share_bytes_min = block}));
          }};
}

class BlockReaders : public testing::TestWithParam<ReaderCase> {
 protected:
  void SetUp() override {
    const Result<void> ring = IoUringReader::probe();
    if (GetParam().needs_ring && !ring.ok()) GTEST_SKIP() << ring.error().message;
    for (int64_t file = 0; file < 2; ++file) {
      contents_.push_back(content_of(file, file_blocks * block));
      paths_.push_back(folder_ / ("f" + std::to_string(file)));
      write_text(paths_.back(), contents_.back());
    }
  }

  std::unique_ptr<BlockReader> open(const ReadQueueOptions& options = {}, uint32_t seed = 1) {
    Result<std::unique_ptr<BlockReader>> reader = GetParam().open(paths_, options, seed);
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return std::move(reader).value();
  }

  bool has_its_bytes(const ReadRequest& request) const {
    return std::memcmp(request.target,
                       contents_[static_cast<size_t>(request.file)].data() + request.offset,
                       static_cast<size_t>(request.bytes)) == 0;
  }

  TemporaryFolder folder_;
  std::vector<std::string> paths_, contents_;
};

// A seeded run: what is outstanding, what was cancelled, what came.
class SeededRun {
 public:
  static constexpr int64_t slots = 12, slot_blocks = 16;

  SeededRun(uint32_t seed, AlignedMemory& memory) : random_(seed), memory_(memory) {}

  ReadRequest submit(BlockReader& reader) {
    const int64_t blocks = 1 + pick(slot_blocks);
    int64_t slot = 0;
    while (is_used(slot)) ++slot;
    const ReadRequest request{
        .file = static_cast<int32_t>(pick(2)),
        .offset = pick(file_blocks - blocks + 1) * block,
        .bytes = blocks * block,
        .target = memory_.data() + slot * slot_blocks * block,
        .tag = next_tag_++,
        .urgency = pick(2) == 0 ? ReadUrgency::demand : ReadUrgency::look_ahead};
    std::memset(request.target, 0x55, static_cast<size_t>(request.bytes));
    outstanding_[request.tag] = {request, slot, false};
    reader.submit(request);
    return request;
  }
  // Outstanding, complete, or the next one.
  uint64_t some_tag() { return static_cast<uint64_t>(pick(static_cast<int64_t>(next_tag_) + 1)); }
  void cancelled(uint64_t tag) {
    const auto found = outstanding_.find(tag);
    if (found != outstanding_.end()) found->second.is_cancelled = true;
  }
  bool has_room() const { return outstanding_.size() < slots; }
  bool is_empty() const { return outstanding_.empty(); }
  int64_t outstanding() const { return static_cast<int64_t>(outstanding_.size()); }
  int64_t pick(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }

  // The request, and whether it may come back cancelled.
  std::pair<ReadRequest, bool> take(uint64_t tag) {
    const auto found = outstanding_.find(tag);
    EXPECT_NE(found, outstanding_.end()) << "tag " << tag << " is not outstanding";
    if (found == outstanding_.end()) return {};
    const auto result = std::pair(found->second.request, found->second.is_cancelled);
    outstanding_.erase(found);
    return result;
  }

 private:
  struct Outstanding {
    ReadRequest request;
    int64_t slot = 0;
    bool is_cancelled = false;
  };
  bool is_used(int64_t slot) const {
    return std::any_of(outstanding_.begin(), outstanding_.end(),
                       [slot](const auto& entry) { return entry.second.slot == slot; });
  }
  std::mt19937_64 random_;
  AlignedMemory& memory_;
  std::map<uint64_t, Outstanding> outstanding_;
  uint64_t next_tag_ = 0;
};

TEST_P(BlockReaders, bytes_that_do_not_hash_to_their_checksum_are_an_error) {
  const auto reader = open();
  AlignedMemory memory = AlignedMemory::allocate(2 * file_blocks * block).value();
  const auto submit = [&](uint64_t tag, uint64_t hash) {
    reader->submit({.file = 1,
                    .bytes = file_blocks * block,
                    .target = memory.data() + static_cast<int64_t>(tag) * file_blocks * block,
                    .tag = tag,
                    .checksum = ReadChecksum{.hash = hash, .file_name = "f1"}});
  };
  const uint64_t right = hash_bytes(contents_[1]);
  submit(0, right);
  submit(1, right + 1);
  for (int i = 0; i < 2; ++i) {
    const ReadCompletion completion = reader->wait();
    EXPECT_EQ(completion.result.ok(), completion.tag == 0);
    if (completion.tag == 0) continue;
    EXPECT_EQ(completion.result.error().message,
              fmt::format("f1: checksum of {} bytes at 0: wanted {:016x}, got {:016x}",
                          file_blocks * block, right + 1, right));
  }
  EXPECT_EQ(reader->outstanding(), 0);
}

TEST_P(BlockReaders, every_tag_completes_once_with_its_bytes_in_500_seeded_runs) {
  AlignedMemory memory =
      AlignedMemory::allocate(SeededRun::slots * SeededRun::slot_blocks * block).value();
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SeededRun run(seed, memory);
    const auto reader = open({.segment_bytes = (1 + run.pick(6)) * block,
                              .look_ahead_in_flight_max = 1 + static_cast<int>(run.pick(3))},
                             seed);
    const auto check = [&](const ReadCompletion& completion) {
      const auto [request, may_be_cancelled] = run.take(completion.tag);
      if (completion.result.ok()) {
        EXPECT_TRUE(has_its_bytes(request));
      } else {
        EXPECT_TRUE(may_be_cancelled) << completion.result.error().message;
        EXPECT_EQ(completion.result.error().kind, ErrorKind::cancelled);
      }
    };
    for (int action = 0; action < 40; ++action) {
      const int64_t kind = run.pick(8);
      if (kind < 4 && run.has_room()) {
        run.submit(*reader);
      } else if (kind == 4) {
        reader->promote(run.some_tag());
      } else if (kind == 5) {
        const uint64_t tag = run.some_tag();
        run.cancelled(tag);
        reader->cancel(tag);
      } else if (kind == 6 && !run.is_empty()) {
        check(reader->wait());
      } else if (const std::optional<ReadCompletion> completion = reader->poll()) {
        check(*completion);
      }
      EXPECT_EQ(reader->outstanding(), run.outstanding());
    }
    // Half of the runs end with reads under way: the destructor has to wait for them, or they
    // write into the next run.
    while (seed % 2 == 0 && !run.is_empty()) check(reader->wait());
    if (HasFailure()) return;
  }
}

TEST_P(BlockReaders, nothing_writes_into_a_target_once_the_reader_is_gone) {
  AlignedMemory memory = AlignedMemory::allocate(64 * file_blocks * block).value();
  for (int round = 0; round < 20; ++round) {
    auto reader = open({.segment_bytes = 4 * block});
    for (uint64_t tag = 0; tag < 64; ++tag) {
      reader->submit({.file = static_cast<int32_t>(tag % 2),
                      .offset = 0,
                      .bytes = file_blocks * block,
                      .target = memory.data() + static_cast<int64_t>(tag) * file_blocks * block,
                      .tag = tag});
    }
    if (round % 2 == 0) reader->wait();
    reader.reset();
    std::memset(memory.data(), 0xaa, static_cast<size_t>(memory.size_bytes()));
  }
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size_bytes(),
                          [](uint8_t byte) { return byte == 0xaa; }));
}

TEST_P(BlockReaders, a_short_file_is_an_error_that_names_file_offset_wanted_and_got) {
  AlignedMemory memory = AlignedMemory::allocate(8 * block).value();
  write_text(paths_[1], content_of(1, 3 * block + 100));
  const auto reader = open({.segment_bytes = block});
  reader->submit(
      {.file = 1, .offset = 3 * block, .bytes = block, .target = memory.data(), .tag = 9});
  const ReadCompletion completion = reader->wait();
  EXPECT_EQ(completion.tag, 9U);
  ASSERT_FALSE(completion.result.ok());
  EXPECT_EQ(completion.result.error().message,
            paths_[1] + ": read at 12288: wanted 4096 bytes, got 100: the file is short");
  EXPECT_EQ(reader->outstanding(), 0);
}

TEST_P(BlockReaders, a_missing_file_is_named_at_open) {
  paths_.push_back(folder_ / "none");
  const auto reader = GetParam().open(paths_, {}, 1);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().kind, ErrorKind::not_found);
  EXPECT_THAT(reader.error().message, testing::HasSubstr(paths_.back()));
}

TEST_P(BlockReaders, bytes_and_busy_time_are_counted) {
  AlignedMemory memory = AlignedMemory::allocate(8 * block).value();
  const auto reader = open();
  reader->submit({.file = 0, .offset = 0, .bytes = 8 * block, .target = memory.data(), .tag = 1});
  reader->wait();
  EXPECT_EQ(reader->counters().bytes, 8 * block);
  EXPECT_GT(reader->counters().busy_ns, 0);
  EXPECT_EQ(reader->counters().failures, 0);
}

INSTANTIATE_TEST_SUITE_P(All, BlockReaders,
                         testing::Values(thread_case("one_thread", 1),
                                         thread_case("four_threads", 4),
                                         ring_case("ring_of_one", 1), ring_case("ring_of_eight", 8),
                                         late_case(), replica_case()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(IoUringReader, without_a_descriptor_left_it_cannot_be_had) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at an object";
#endif
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto reader = IoUringReader::start({}, 1, {});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().kind, ErrorKind::unavailable);
}

TEST(ReaderChoice, what_is_chosen_is_said) {
  const TemporaryFolder folder;
  write_text(folder / "a", content_of(0, block));
  const auto threads =
      open_block_reader({folder / "a"}, {.kind = ReaderKind::threads, .in_flight_max = 3});
  ASSERT_TRUE(threads.ok()) << threads.error().message;
  EXPECT_THAT(threads.value().description, testing::StartsWith("3 threads, "));
  const auto chosen = open_block_reader({folder / "a"}, {});
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  const bool has_ring = IoUringReader::probe().ok() && chosen.value().is_direct;
  EXPECT_THAT(chosen.value().description,
              testing::StartsWith(has_ring ? "io_uring, direct" : "16"));
}

struct RefusedCall {
  const char* name;
  long call;
  int failure;
  const char* doing;
};

void PrintTo(const RefusedCall& refused, std::ostream* out) {
  *out << refused.name;
}

// What containers forbid lists the three calls one by one.
class RefusedRing : public testing::TestWithParam<RefusedCall> {
 protected:
  void SetUp() override {
    const Result<void> ring = IoUringReader::probe();
    if (!ring.ok()) GTEST_SKIP() << ring.error().message;
    write_text(folder_ / "a", content_of(0, file_blocks * block));
  }

  // `action` of a thread that ends with its filter.
  void under_filter(const std::function<void()>& action) {
    bool has_filter = false;
    std::thread thread([&] {
      has_filter = test::refuse_call(GetParam().call, GetParam().failure);
      if (has_filter) action();
    });
    thread.join();
    if (!has_filter) GTEST_SKIP() << "the kernel has no filters of system calls";
  }

  static std::string message() {
    return fmt::format("io_uring: {}: {}", GetParam().doing, std::strerror(GetParam().failure));
  }

  TemporaryFolder folder_;
};

TEST_P(RefusedRing, threads_read_and_the_description_says_why) {
  under_filter([&] {
    const auto opened = open_block_reader({folder_ / "a"}, {.in_flight_max = 3});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const std::string how = opened.value().is_direct ? "direct" : "buffered";
    EXPECT_THAT(opened.value().description, testing::StartsWith("3 threads, " + how));
    if (!opened.value().is_direct) return;
    EXPECT_THAT(opened.value().description, testing::EndsWith("; " + message()));
    AlignedMemory memory = AlignedMemory::allocate(block).value();
    opened.value().reader->submit({.offset = block, .bytes = block, .target = memory.data()});
    ASSERT_TRUE(opened.value().reader->wait().result.ok());
    EXPECT_EQ(std::memcmp(memory.data(), content_of(0, 2 * block).data() + block, block), 0);
  });
}

TEST_P(RefusedRing, who_wants_a_ring_is_told_before_the_first_read) {
  under_filter([&] {
    const auto opened = open_block_reader({folder_ / "a"}, {.kind = ReaderKind::io_uring});
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().kind,
              GetParam().failure == ENOMEM ? ErrorKind::no_memory : ErrorKind::unavailable);
    EXPECT_EQ(opened.error().message, message());
    const Result<void> probed = IoUringReader::probe();
    ASSERT_FALSE(probed.ok());
    EXPECT_EQ(probed.error().message, message());
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedRing,
    testing::Values(RefusedCall{"setup_eperm", SYS_io_uring_setup, EPERM, "set up"},
                    RefusedCall{"setup_enosys", SYS_io_uring_setup, ENOSYS, "set up"},
                    RefusedCall{"setup_enomem", SYS_io_uring_setup, ENOMEM, "set up"},
                    RefusedCall{"register_eperm", SYS_io_uring_register, EPERM, "register files"},
                    RefusedCall{"register_enosys", SYS_io_uring_register, ENOSYS, "register files"},
                    RefusedCall{"register_enomem", SYS_io_uring_register, ENOMEM, "register files"},
                    RefusedCall{"enter_eperm", SYS_io_uring_enter, EPERM, "submit"},
                    RefusedCall{"enter_enosys", SYS_io_uring_enter, ENOSYS, "submit"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(ReaderChoice, a_file_system_without_direct_reads_is_read_buffered) {
  // A file of /proc has no direct reads anywhere.
  const auto opened = open_block_reader({"/proc/cpuinfo"}, {});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_FALSE(opened.value().is_direct);
  EXPECT_EQ(opened.value().description, "16 threads, buffered: /proc/cpuinfo has no direct reads");
}

TEST(ReaderChoice, names_are_those_of_the_setting) {
  EXPECT_EQ(reader_kind_from("auto"), ReaderKind::automatic);
  EXPECT_EQ(reader_kind_from("io_uring"), ReaderKind::io_uring);
  EXPECT_EQ(reader_kind_from("threads"), ReaderKind::threads);
  EXPECT_FALSE(reader_kind_from("mmap"));
}

TEST(FaultReader, it_does_what_its_seed_says_and_counts_it) {
  const TemporaryFolder folder;
  const std::string content = content_of(0, 16 * block);
  write_text(folder / "a", content);
  AlignedMemory memory = AlignedMemory::allocate(16 * block).value();
  const auto outcome = [&](uint32_t seed) {
    FaultReader reader(ThreadReader::open({folder / "a"}, 2).value(),
                       {.late = 0.3, .short_read = 0.2, .failed = 0.2, .flipped = 0.2}, seed);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 16; ++i) {
      const uint64_t tag = static_cast<uint64_t>(i);
      reader.submit(
          {.offset = i * block, .bytes = block, .target = memory.data() + i * block, .tag = tag});
      const bool is_ok = reader.wait().result.ok();
      wrong +=
          !is_ok || std::memcmp(memory.data() + i * block, content.data() + i * block, block) != 0;
    }
    EXPECT_EQ(wrong, reader.fault_count());
    return wrong;
  };
  EXPECT_GT(outcome(7), 0);
  EXPECT_EQ(outcome(7), outcome(7));
}

}  // namespace
}  // namespace glmd
