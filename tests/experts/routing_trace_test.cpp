#include "experts/routing_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "platform/random.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const RoutingShape small_shape{
    .identity = 0x1122334455667788, .experts = 16, .chosen = 2, .expert_bytes = {0, 4096, 8192}};
constexpr size_t header_bytes = 32 + 3 * 8 + 8;

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

// A whole trace.
struct Content {
  RoutingShape shape;
  std::vector<RoutingRecord> records;
  bool is_cut = false;
};

Result<Content> read_all(const std::string& path) {
  RoutingTraceReader reader = TRY(RoutingTraceReader::open(path));
  Content content{.shape = reader.shape(), .records = {}};
  RoutingRecord record;
  while (TRY(reader.next(record))) content.records.push_back(record);
  content.is_cut = reader.is_cut();
  return content;
}

Result<Content> read_bytes(const std::string& content) {
  const TemporaryFolder folder;
  std::ofstream(folder / "trace") << content;
  return read_all(folder / "trace");
}

// As version 1 had it: without the checksum of the header.
std::string as_version_1(std::string content) {
  content.erase(header_bytes - 8, 8);
  content[8] = 1;
  return content;
}

std::string with_u32(std::string content, size_t offset, uint32_t value) {
  std::memcpy(content.data() + offset, &value, sizeof value);
  return content;
}

TEST(RoutingTrace, what_was_written_is_read) {
  const Content trace = read_bytes(content_of_two_records()).value();
  EXPECT_EQ(trace.shape.identity, small_shape.identity);
  EXPECT_EQ(trace.shape.experts, 16);
  EXPECT_EQ(trace.shape.chosen, 2);
  EXPECT_THAT(trace.shape.expert_bytes, ElementsAre(0, 4096, 8192));
  ASSERT_EQ(trace.records.size(), 2U);
  EXPECT_EQ(trace.records[0].layer, 1);
  EXPECT_THAT(trace.records[0].positions, ElementsAre(7, 8, 100));
  EXPECT_THAT(trace.records[0].experts, ElementsAre(1, 2, 3, 4, 15, 0));
  EXPECT_EQ(trace.records[1].layer, 2);
  EXPECT_THAT(trace.records[1].positions, ElementsAre(9));
  EXPECT_THAT(trace.records[1].experts, ElementsAre(5, 6));
  EXPECT_FALSE(trace.is_cut);
}

TEST(RoutingTrace, version_1_is_still_read) {
  const Content trace = read_bytes(as_version_1(content_of_two_records())).value();
  EXPECT_THAT(trace.shape.expert_bytes, ElementsAre(0, 4096, 8192));
  ASSERT_EQ(trace.records.size(), 2U);
  EXPECT_THAT(trace.records[1].experts, ElementsAre(5, 6));
}

TEST(RoutingTrace, a_header_of_version_1_that_its_records_belie_is_refused) {
  const TemporaryFolder folder;
  {
    const std::unique_ptr<RoutingTraceWriter> writer = open_writer(folder / "trace");
    for (uint16_t i = 0; i < 1000; ++i) {
      const auto expert = static_cast<uint16_t>(i % 15);
      writer->routed({.layer = 1,
                      .positions = std::vector<uint32_t>{i},
                      .experts = std::vector<uint16_t>{expert, uint16_t(expert + 1)}});
    }
  }
  const std::string good = as_version_1(read_file(folder / "trace", 1 << 20).value());
  EXPECT_TRUE(read_bytes(good).ok());
  std::string bad = good;
  bad[24] = static_cast<char>(240);  // experts
  EXPECT_THAT(read_bytes(bad).error().message,
              HasSubstr("experts: the header says 240, of 2000 choices none is above 15"));
  bad = good;
  bad[28] = 3;  // chosen
  EXPECT_FALSE(read_bytes(bad).ok());
  bad = good;
  bad[12] = 2;  // layers
  EXPECT_FALSE(read_bytes(bad).ok());
}

TEST(RoutingTrace, every_flipped_bit_of_the_header_is_found) {
  const std::string good = content_of_two_records();
  for (size_t bit = 0; bit < header_bytes * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(read_bytes(bad).ok()) << bit;
  }
}

TEST(RoutingTrace, an_expert_twice_in_a_row_is_refused) {
  std::string bad = content_of_two_records();
  bad[bad.size() - 2] = 5;
  EXPECT_THAT(read_bytes(bad).error().message, HasSubstr("expert 5 twice in a row"));
}

TEST(RoutingTrace, a_pipe_is_read_to_its_end) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string content = content_of_two_records();
  std::thread writer([&] { std::ofstream(pipe) << content; });
  const Result<Content> trace = read_all(pipe);
  writer.join();
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().records.size(), 2U);
}

TEST(RoutingTrace, what_is_neither_file_nor_pipe_is_refused) {
  EXPECT_EQ(read_all("/dev/zero").error().message,
            "/dev/zero: wanted a regular file or a pipe, got a socket or device");
  EXPECT_EQ(read_all("/tmp").error().message,
            "/tmp: wanted a regular file or a pipe, got a folder");
}

TEST(RoutingTrace, a_file_cut_anywhere_gives_its_whole_records_or_an_error) {
  const std::string whole = content_of_two_records();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Result<Content> trace = read_bytes(whole.substr(0, bytes));
    if (bytes < header_bytes) {
      ASSERT_FALSE(trace.ok()) << bytes;
      EXPECT_THAT(trace.error().message, HasSubstr("header is cut"));
      continue;
    }
    ASSERT_TRUE(trace.ok()) << bytes;
    const size_t first_end = header_bytes + 8 + 3 * (4 + 2 * 2);
    EXPECT_EQ(trace.value().records.size(), bytes >= first_end ? 1U : 0U);
    EXPECT_EQ(trace.value().is_cut, bytes != header_bytes && bytes != first_end) << bytes;
  }
}

TEST(RoutingTrace, what_is_wrong_is_refused_with_its_place) {
  const std::string good = as_version_1(content_of_two_records());
  constexpr size_t first_record = header_bytes - 8;
  const auto message = [&](size_t offset, uint32_t value) {
    const Result<Content> trace = read_bytes(with_u32(good, offset, value));
    return trace.ok() ? "" : trace.error().message;
  };
  EXPECT_THAT(message(0, 0), HasSubstr("not a routing trace"));
  EXPECT_THAT(message(8, 3), HasSubstr("version: wanted 1 or 2, got 3"));
  EXPECT_THAT(message(12, 0), HasSubstr("layers: wanted 1 to 1024, got 0"));
  EXPECT_THAT(message(12, 0xFFFFFFFF), HasSubstr("layers: wanted 1 to 1024, got 4294967295"));
  EXPECT_THAT(message(24, 0), HasSubstr("experts: wanted 1 to 65536, got 0"));
  EXPECT_THAT(message(28, 17), HasSubstr("chosen experts: wanted 1 to 16, got 17"));
  EXPECT_THAT(message(44, 0x80000000), HasSubstr("bytes of an expert"));
  EXPECT_THAT(message(first_record, 0), HasSubstr("record at 56: layer 0 has no experts"));
  EXPECT_THAT(message(first_record, 3), HasSubstr("record at 56: layer 3 has no experts"));
  EXPECT_THAT(message(first_record + 4, 0), HasSubstr("rows: wanted 1 to 1048576, got 0"));
  EXPECT_THAT(message(first_record + 4, 0xFFFFFFFF), HasSubstr("rows: wanted"));
  EXPECT_THAT(message(first_record + 20, 16), HasSubstr("expert: wanted 0 to 15, got 16"));
}

TEST(RoutingTrace, any_flipped_byte_is_read_or_refused) {
  const std::string good = content_of_two_records();
  SplitMix random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int64_t flips = 1 + random.below(3); flips > 0; --flips) {
      bad[random.below(std::ssize(bad))] ^= static_cast<char>(1 + random.below(255));
    }
    const Result<Content> trace = read_bytes(bad);
    if (!trace.ok()) continue;
    for (const RoutingRecord& record : trace.value().records) {
      for (const uint16_t expert : record.experts) ASSERT_LT(expert, trace.value().shape.experts);
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
    EXPECT_EQ(writer.error().message,
              path + ": wanted a regular file, got a pipe, socket or device");
  }
}

std::string text_of(const std::string& path) {
  return read_file(path, 1 << 20).value();
}

TEST(RoutingTraceWriter, a_file_that_is_no_trace_is_not_touched) {
  const TemporaryFolder folder;
  const std::string path = folder / "experts-001.safetensors", trace = folder / "trace";
  for (const std::string& content : {std::string("x"), std::string(100, 'x')}) {
    std::ofstream(path) << content;
    const auto writer = RoutingTraceWriter::create(path, small_shape, {});
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.error().kind, ErrorKind::config);
    EXPECT_EQ(writer.error().message, path + ": exists and is no routing trace, not touched");
    EXPECT_EQ(text_of(path), content);
    EXPECT_EQ(check_trace_place(path).error().message, writer.error().message);
  }
  std::ofstream(kept_trace_path(trace)) << "no trace";
  write_two_records(folder / "other");
  std::filesystem::rename(folder / "other", trace);
  const std::string earlier = text_of(trace);
  EXPECT_EQ(RoutingTraceWriter::create(trace, small_shape, {}).error().message,
            trace + ".1: exists and is no routing trace, not touched");
  EXPECT_EQ(text_of(trace), earlier);
  EXPECT_EQ(text_of(trace + ".1"), "no trace");
}

TEST(RoutingTraceWriter, an_earlier_trace_is_kept_in_place_of_an_older_one) {
  const TemporaryFolder folder;
  const std::string path = folder / "trace";
  write_two_records(path);
  const std::string two = text_of(path);
  open_writer(path)->routed(
      {.layer = 2, .positions = std::vector<uint32_t>{9}, .experts = std::vector<uint16_t>{5, 6}});
  EXPECT_EQ(text_of(path + ".1"), two);
  const std::string one = text_of(path);
  EXPECT_LT(one.size(), two.size());
  write_two_records(path);
  EXPECT_EQ(text_of(path + ".1"), one);
  EXPECT_EQ(text_of(path), two);
  EXPECT_TRUE(check_trace_place(path).ok());
  EXPECT_EQ(text_of(path), two);
}

TEST(RoutingTraceWriter, starts_that_record_nothing_push_no_trace_out) {
  const TemporaryFolder folder;
  const std::string path = folder / "trace";
  write_two_records(path);
  const std::string two = text_of(path);
  for (int start = 0; start < 3; ++start) open_writer(path);
  std::ofstream(path, std::ios::trunc).close();  // as a crash before the header leaves it
  open_writer(path);
  EXPECT_EQ(text_of(path + ".1"), two);
  EXPECT_EQ(text_of(path).size(), header_bytes);
}

TEST(RoutingTraceWriter, a_trace_that_is_being_written_is_left_alone) {
  const TemporaryFolder folder;
  const std::unique_ptr<RoutingTraceWriter> first = open_writer(folder / "trace");
  const auto second = RoutingTraceWriter::create(folder / "trace", small_shape, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().kind, ErrorKind::busy);
  EXPECT_TRUE(check_trace_place(folder / "trace").ok());
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
    std::vector<uint16_t> experts(2000, 4);
    for (size_t row = 0; row < 1000; ++row) experts[2 * row] = 3;
    for (int i = 0; i < 500; ++i) {  // 4 MB
      writer->routed({.layer = 1, .positions = positions, .experts = experts});
    }
  }
  EXPECT_THAT(failure, HasSubstr("File too large"));
  EXPECT_EQ(failure.find("write"), failure.rfind("write"));  // once
  const Content trace = read_all(folder / "trace").value();
  EXPECT_FALSE(trace.is_cut);
  EXPECT_LE(trace.records.size() * 8008, size_t{1} << 20);
  for (const RoutingRecord& record : trace.records) EXPECT_EQ(record.positions.size(), 1000U);
}

}  // namespace
}  // namespace glmd
