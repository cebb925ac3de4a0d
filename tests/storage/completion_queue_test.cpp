// Where reads end: what was asked to be checked is handed over checked, all else as it came.
#include "storage/completion_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "storage/manifest.h"

namespace glmd {
namespace {

constexpr int64_t limit_ms = 60'000;  // where only a fault would wait

std::array<uint8_t, 4096> bytes = {1, 2, 3};

ReadRequest request(uint64_t tag, std::optional<uint64_t> hash = std::nullopt) {
  ReadRequest one{.offset = 8192, .bytes = 4096, .target = bytes.data(), .tag = tag};
  if (hash) one.checksum = {.hash = *hash, .file_name = "experts-003.safetensors"};
  return one;
}

TEST(CompletionQueue, what_needs_no_check_is_there_at_once) {
  CompletionQueue queue(nullptr);
  EXPECT_FALSE(queue.poll());
  queue.add(request(1), {});
  queue.add(request(2), error(ErrorKind::io, "no luck"));
  EXPECT_EQ(queue.poll()->tag, 1U);
  const std::optional<ReadCompletion> second = queue.poll();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->tag, 2U);
  EXPECT_EQ(second->result.error().message, "no luck");
  EXPECT_FALSE(queue.poll());
}

TEST(CompletionQueue, right_bytes_come_and_wrong_ones_say_where_wanted_and_got) {
  CompletionQueue queue(nullptr);
  const uint64_t right = hash_bytes(bytes);
  queue.add(request(1, right), {});
  queue.add(request(2, 0xabc), {});
  const ReadCompletion first = queue.wait_for(limit_ms).value();
  const ReadCompletion second = queue.wait_for(limit_ms).value();
  EXPECT_EQ(first.tag, 1U);
  EXPECT_TRUE(first.result.ok());
  EXPECT_EQ(second.tag, 2U);
  ASSERT_FALSE(second.result.ok());
  EXPECT_EQ(second.result.error().kind, ErrorKind::corrupt);
  EXPECT_EQ(
      second.result.error().message,
      "experts-003.safetensors: checksum of 4096 bytes at 8192: wanted 0000000000000abc, got " +
          hash_text(right));
}

TEST(CompletionQueue, a_read_that_failed_is_not_checked) {
  CompletionQueue queue(nullptr);
  queue.add(request(1, 0xabc), error(ErrorKind::cancelled, "cancelled"));
  const std::optional<ReadCompletion> completion = queue.poll();
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->result.error().kind, ErrorKind::cancelled);
}

TEST(CompletionQueue, the_signal_is_raised_when_a_check_ends) {
  ReadSignal signal;
  CompletionQueue queue(&signal);
  queue.add(request(1, hash_bytes(bytes)), {});
  signal.wait_for(limit_ms);
  EXPECT_TRUE(queue.poll());
}

TEST(CompletionQueue, may_go_while_checks_wait) {
  std::vector<uint8_t> large(64 << 20);
  CompletionQueue queue(nullptr);
  for (uint64_t tag = 0; tag < 8; ++tag) {
    ReadRequest one = request(tag, 0);
    one.target = large.data();
    one.bytes = static_cast<int64_t>(large.size());
    queue.add(one, {});
  }
}

}  // namespace
}  // namespace glmd
