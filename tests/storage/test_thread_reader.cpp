// Reads through threads: every completion comes once, with the right bytes or an error that names
// the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "platform/aligned_memory.h"
#include "storage/thread_reader.h"
#include "tests/convert/tiny_checkpoint.h"

namespace glmd {
namespace {

constexpr int64_t block = 4096;

std::string patterned(int64_t blocks, int salt) {
  std::string content;
  for (int64_t i = 0; i < blocks; ++i) content.append(block, static_cast<char>(i + salt));
  return content;
}

TEST(ThreadReader, every_request_is_completed_once_with_its_bytes) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "a", patterned(64, 0));
  test::write_text(folder / "b", patterned(64, 100));
  auto reader = ThreadReader::open({folder / "a", folder / "b"}, 4);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  AlignedMemory memory = AlignedMemory::allocate(128 * block).value();
  for (uint64_t tag = 0; tag < 128; ++tag) {
    reader.value()->submit({.file = static_cast<int32_t>(tag % 2),
                            .offset = static_cast<int64_t>(tag / 2) * block,
                            .bytes = block,
                            .target = memory.data() + static_cast<int64_t>(tag) * block,
                            .tag = tag});
  }
  EXPECT_EQ(reader.value()->outstanding(), 128);
  std::set<uint64_t> seen;
  for (int i = 0; i < 128; ++i) {
    const ReadCompletion completion = reader.value()->wait();
    ASSERT_TRUE(completion.result.ok()) << completion.result.error().message;
    EXPECT_TRUE(seen.insert(completion.tag).second);
    const uint8_t* bytes = memory.data() + static_cast<int64_t>(completion.tag) * block;
    const auto wanted = static_cast<uint8_t>(completion.tag / 2 + (completion.tag % 2) * 100);
    EXPECT_TRUE(std::all_of(bytes, bytes + block, [&](uint8_t byte) { return byte == wanted; }));
  }
  EXPECT_EQ(reader.value()->outstanding(), 0);
}

TEST(ThreadReader, a_short_read_names_file_offset_wanted_and_got) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "a", patterned(3, 0));
  auto reader = ThreadReader::open({folder / "a"}, 1).value();
  AlignedMemory memory = AlignedMemory::allocate(4 * block).value();
  reader->submit(
      {.file = 0, .offset = 2 * block, .bytes = 2 * block, .target = memory.data(), .tag = 9});
  const ReadCompletion completion = reader->wait();
  EXPECT_EQ(completion.tag, 9U);
  ASSERT_FALSE(completion.result.ok());
  EXPECT_THAT(completion.result.error().message, testing::HasSubstr(folder / "a"));
  EXPECT_THAT(completion.result.error().message,
              testing::HasSubstr("read at 8192: wanted 8192 bytes, got 4096"));
}

TEST(ThreadReader, a_missing_file_is_named_at_open) {
  const test::TemporaryFolder folder;
  const auto reader = ThreadReader::open({folder / "none"}, 1);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().kind, ErrorKind::not_found);
}

TEST(ThreadReader, may_be_destroyed_with_reads_under_way) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "a", patterned(64, 0));
  AlignedMemory memory = AlignedMemory::allocate(64 * block).value();
  auto reader = ThreadReader::open({folder / "a"}, 3).value();
  for (int64_t i = 0; i < 64; ++i)
    reader->submit(
        {.file = 0, .offset = i * block, .bytes = block, .target = memory.data() + i * block});
  reader.reset();
}

}  // namespace
}  // namespace glmd
