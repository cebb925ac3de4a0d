#include "experts/routing_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "platform/random.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const RoutingShape small_shape{
    .identity = 0x1122334455667788, .experts = 16, .chosen = 2, .expert_bytes = {0, 4096, 8192}};
constexpr size_t header_bytes = 32 + 3 * 8;

std::unique_ptr<RoutingTraceWriter> open_writer(const std::string& path,
                                                std::string* failure = nullptr) {
  return std::move(RoutingTraceWriter::create(path, small_shape,
                                              [failure](const Error& cause) {
                                                ASSERT_NE(failure, nullptr) << cause.message;
                                                *failure += cause.message;
                                              }))
      .value();
}

void write_two_records(const std::string& path) {
  const std::unique_ptr<RoutingTraceWriter> writer = open_writer(path);
  writer->routed({.layer = 1,
                  .positions = std::vector<uint32_t>{7, 8, 100},
                  .experts = std::vector<uint16_t>{1, 2, 3, 4, 15, 0}});
  writer->routed(
      {.layer = 2, .positions = std::vector<uint32_t>{9}, .experts = std::vector<uint16_t>{5, 6}});
}

std::string content_of_two_records() {
  const TemporaryFolder folder;
  write_two_records(folder / "trace");
  return read_file(folder / "trace", 1 << 20).value();
}

Result<RoutingTrace> read_bytes(const std::string& content) {
  const TemporaryFolder folder;
  std::ofstream(folder / "trace") << content;
  return read_routing_trace(folder / "trace");
}

std::string with_u32(std::string content, size_t offset, uint32_t value) {
  std::memcpy(content.data() + offset, &value, sizeof value);
  return content;
}

TEST(RoutingTrace, what_was_written_is_read) {
  const RoutingTrace trace = read_bytes(content_of_two_records()).value();
  EXPECT_EQ(trace.shape.identity, small_shape.identity);
  EXPECT_EQ(trace.shape.experts, 16);
  EXPECT_EQ(trace.shape.chosen, 2);
  EXPECT_THAT(trace.shape.expert_bytes, ElementsAre(0, 4096, 8192));
  ASSERT_EQ(trace.steps.size(), 2U);
  EXPECT_EQ(trace.steps[1].layer, 2);
  EXPECT_EQ(trace.steps[1].first_row, 3);
  EXPECT_EQ(trace.steps[1].row_count, 1);
  EXPECT_THAT(trace.positions, ElementsAre(7, 8, 100, 9));
  EXPECT_THAT(trace.experts, ElementsAre(1, 2, 3, 4, 15, 0, 5, 6));
  EXPECT_FALSE(trace.is_cut);
}

TEST(RoutingTrace, a_file_cut_anywhere_gives_its_whole_records_or_an_error) {
  const std::string whole = content_of_two_records();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Result<RoutingTrace> trace = read_bytes(whole.substr(0, bytes));
    if (bytes < header_bytes) {
      ASSERT_FALSE(trace.ok()) << bytes;
      EXPECT_THAT(trace.error().message, HasSubstr("header is cut"));
      continue;
    }
    ASSERT_TRUE(trace.ok()) << bytes;
    const size_t first_end = header_bytes + 8 + 3 * (4 + 2 * 2);
    EXPECT_EQ(trace.value().steps.size(), bytes >= first_end ? 1U : 0U);
    EXPECT_EQ(trace.value().is_cut, bytes != header_bytes && bytes != first_end) << bytes;
  }
}

TEST(RoutingTrace, what_is_wrong_is_refused_with_its_place) {
  const std::string good = content_of_two_records();
  const auto message = [&](size_t offset, uint32_t value) {
    const Result<RoutingTrace> trace = read_bytes(with_u32(good, offset, value));
    return trace.ok() ? "" : trace.error().message;
  };
  EXPECT_THAT(message(0, 0), HasSubstr("not a routing trace"));
  EXPECT_THAT(message(8, 2), HasSubstr("version: wanted 1, got 2"));
  EXPECT_THAT(message(12, 0), HasSubstr("layers: wanted 1 to 1024, got 0"));
  EXPECT_THAT(message(12, 0xFFFFFFFF), HasSubstr("layers: wanted 1 to 1024, got 4294967295"));
  EXPECT_THAT(message(24, 0), HasSubstr("experts: wanted 1 to 65536, got 0"));
  EXPECT_THAT(message(28, 17), HasSubstr("chosen experts: wanted 1 to 16, got 17"));
  EXPECT_THAT(message(44, 0x80000000), HasSubstr("bytes of an expert"));
  EXPECT_THAT(message(header_bytes, 0), HasSubstr("record at 56: layer 0 has no experts"));
  EXPECT_THAT(message(header_bytes, 3), HasSubstr("record at 56: layer 3 has no experts"));
  EXPECT_THAT(message(header_bytes + 4, 0), HasSubstr("rows: wanted 1 to 1048576, got 0"));
  EXPECT_THAT(message(header_bytes + 4, 0xFFFFFFFF), HasSubstr("rows: wanted"));
  EXPECT_THAT(message(header_bytes + 20, 16), HasSubstr("expert: wanted 0 to 15, got 16"));
}

TEST(RoutingTrace, any_flipped_byte_is_read_or_refused) {
  const std::string good = content_of_two_records();
  SplitMix random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int64_t flips = 1 + random.below(3); flips > 0; --flips) {
      bad[random.below(std::ssize(bad))] ^= static_cast<char>(1 + random.below(255));
    }
    const Result<RoutingTrace> trace = read_bytes(bad);
    if (!trace.ok()) continue;
    for (const uint16_t expert : trace.value().experts) {
      ASSERT_LT(expert, trace.value().shape.experts);
    }
  }
}

TEST(RoutingTraceWriter, what_is_no_regular_file_is_refused) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/full")}) {
    const auto writer = RoutingTraceWriter::create(path, small_shape, {});
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.error().kind, ErrorKind::config);
    EXPECT_EQ(writer.error().message, path + ": wanted a regular file, got a pipe or device");
  }
}

// Limits the size of files while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(RoutingTraceWriter, a_full_disk_at_the_start_ends_the_trace_and_leaves_no_file) {
  const TemporaryFolder folder;
  std::string failure;
  {
    const FileSizeLimit limit(1);
    open_writer(folder / "trace", &failure);
  }
  EXPECT_THAT(failure, HasSubstr("trace: write"));
  EXPECT_FALSE(path_exists(folder / "trace"));
}

TEST(RoutingTraceWriter, a_full_disk_ends_the_trace_on_a_whole_record_and_says_so_once) {
  const TemporaryFolder folder;
  std::string failure;
  {
    const FileSizeLimit limit(1 << 20);
    const std::unique_ptr<RoutingTraceWriter> writer = open_writer(folder / "trace", &failure);
    const std::vector<uint32_t> positions(1000, 3);
    const std::vector<uint16_t> experts(2000, 4);
    for (int i = 0; i < 500; ++i) {  // 4 MB
      writer->routed({.layer = 1, .positions = positions, .experts = experts});
    }
  }
  EXPECT_THAT(failure, HasSubstr("File too large"));
  EXPECT_EQ(failure.find("write"), failure.rfind("write"));  // once
  const RoutingTrace trace = read_routing_trace(folder / "trace").value();
  EXPECT_FALSE(trace.is_cut);
  EXPECT_LE(trace.steps.size() * 8008, size_t{1} << 20);
  for (const RoutingTrace::Step& step : trace.steps) EXPECT_EQ(step.row_count, 1000);
}

}  // namespace
}  // namespace glmd
