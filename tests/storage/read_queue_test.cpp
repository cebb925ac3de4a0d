// The bookkeeping of block readers, with the test as the worker: what is read next, and what
// becomes of reads that come short, fail, are promoted or cancelled half-way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "platform/aligned_memory.h"
#include "platform/clock.h"
#include "storage/read_queue.h"

namespace glmd {
namespace {

constexpr int64_t block = ReadQueue::alignment;

class ReadQueueTest : public testing::Test {
 protected:
  ReadQueueTest() : memory_(AlignedMemory::allocate(64 * block).value()) {
    std::vector<File> files;
    files.emplace_back(-1, "experts-003.safetensors");
    queue_.emplace(std::move(files),
                   ReadQueueOptions{.segment_bytes = 2 * block, .look_ahead_in_flight_max = 2});
  }

  void submit(uint64_t tag, int64_t blocks, ReadUrgency urgency = ReadUrgency::demand) {
    queue_->submit({.file = 0,
                    .offset = static_cast<int64_t>(tag) * 100 * block,
                    .bytes = blocks * block,
                    .target = memory_.data(),
                    .tag = tag,
                    .urgency = urgency});
  }
  ReadSegment take() { return queue_->try_take().value(); }
  void finish(ReadSegment segment) { end(segment, segment.bytes); }
  void end(ReadSegment& segment, ssize_t result) {
    EXPECT_FALSE(queue_->advance(segment, result));
    queue_->hand_over();
  }

  AlignedMemory memory_;
  std::optional<ReadQueue> queue_;
};

TEST_F(ReadQueueTest, a_request_is_cut_into_equal_segments_without_a_crumb) {
  submit(1, 5);  // three segments of two blocks at most: 2, 2, 1
  const ReadSegment first = take(), second = take(), third = take();
  EXPECT_FALSE(queue_->try_take());
  EXPECT_EQ(first.offset, 100 * block);
  EXPECT_EQ(second.offset, 102 * block);
  EXPECT_EQ(second.target, memory_.data() + 2 * block);
  EXPECT_EQ(third.bytes, block);
  submit(2, 4);
  EXPECT_EQ(take().bytes, 2 * block);
}

TEST_F(ReadQueueTest, it_is_complete_when_its_last_segment_is) {
  submit(1, 4);
  const ReadSegment first = take(), second = take();
  finish(second);
  EXPECT_FALSE(queue_->poll());
  finish(first);
  const std::optional<ReadCompletion> completion = queue_->poll();
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->tag, 1U);
  EXPECT_TRUE(completion->result.ok());
  EXPECT_EQ(queue_->outstanding(), 0);
  EXPECT_EQ(queue_->counters().bytes, 4 * block);
}

TEST_F(ReadQueueTest, what_has_ended_waits_until_the_worker_hands_it_over) {
  submit(1, 2);
  submit(2, 2);
  ReadSegment first = take();
  EXPECT_FALSE(queue_->advance(first, first.bytes));
  EXPECT_FALSE(queue_->poll());
  EXPECT_EQ(take().tag, 2U);  // the disk has work before anybody is woken
  queue_->hand_over();
  EXPECT_EQ(queue_->poll()->tag, 1U);
}

TEST_F(ReadQueueTest, what_the_disk_was_asked_for_first_and_has_not_answered_is_known) {
  EXPECT_FALSE(queue_->oldest_pending());
  const int64_t before_ns = SteadyClock().now_ns();
  submit(1, 6);
  EXPECT_FALSE(queue_->oldest_pending()) << "nobody has asked the disk yet";
  const ReadSegment first = take(), second = take(), third = take();
  const PendingRead oldest = queue_->oldest_pending().value();
  EXPECT_EQ(oldest.path, "experts-003.safetensors");
  EXPECT_EQ(oldest.offset, 100 * block);
  EXPECT_EQ(oldest.bytes, 2 * block);
  EXPECT_GE(oldest.begun_ns, before_ns);
  EXPECT_FALSE(oldest.hangs(oldest.begun_ns + 4'999'999'999));
  EXPECT_TRUE(oldest.hangs(oldest.begun_ns + 5'000'000'000));
  finish(second);
  EXPECT_EQ(queue_->oldest_pending(), oldest);
  finish(first);
  EXPECT_EQ(queue_->oldest_pending()->offset, 104 * block);
  EXPECT_FALSE(queue_->wait_for(0)) << "the last segment is on its way";
  finish(third);
  EXPECT_FALSE(queue_->oldest_pending());
  EXPECT_TRUE(queue_->wait_for(0));
  EXPECT_EQ(queue_->outstanding(), 0);
}

TEST_F(ReadQueueTest, no_further_segment_of_look_ahead_begins_while_demand_waits) {
  submit(1, 4, ReadUrgency::look_ahead);
  EXPECT_EQ(take().tag, 1U);
  submit(2, 4);
  EXPECT_EQ(take().tag, 2U);
  EXPECT_EQ(take().tag, 2U);
  EXPECT_EQ(take().tag, 1U);
}

TEST_F(ReadQueueTest, look_ahead_leaves_room_for_demand) {
  submit(1, 20, ReadUrgency::look_ahead);
  const ReadSegment first = take();
  take();
  EXPECT_FALSE(queue_->try_take());  // two are under way
  finish(first);
  EXPECT_TRUE(queue_->try_take());
}

TEST_F(ReadQueueTest, what_is_left_of_a_promoted_read_is_demand) {
  submit(1, 6, ReadUrgency::look_ahead);
  submit(2, 4, ReadUrgency::look_ahead);
  EXPECT_EQ(take().tag, 1U);
  queue_->promote(2);
  EXPECT_EQ(take().tag, 2U);
  queue_->promote(1);
  EXPECT_EQ(take().tag, 2U);
  EXPECT_EQ(take().tag, 1U);
  EXPECT_EQ(take().offset, 104 * block);
  queue_->promote(77);  // complete long ago
}

TEST_F(ReadQueueTest, cancelling_drops_what_has_not_begun_and_waits_for_what_has) {
  submit(1, 6);
  const ReadSegment first = take();
  queue_->cancel(1);
  EXPECT_FALSE(queue_->try_take());
  EXPECT_FALSE(queue_->poll());  // the disk still writes into the target
  finish(first);
  const std::optional<ReadCompletion> completion = queue_->poll();
  ASSERT_TRUE(completion);
  ASSERT_FALSE(completion->result.ok());
  EXPECT_EQ(completion->result.error().kind, ErrorKind::cancelled);
}

TEST_F(ReadQueueTest, a_cancelled_read_that_has_begun_wholly_comes_whole) {
  submit(1, 2);
  const ReadSegment segment = take();
  queue_->cancel(1);
  finish(segment);
  EXPECT_TRUE(queue_->poll()->result.ok());
}

TEST_F(ReadQueueTest, one_that_has_not_begun_is_cancelled_at_once) {
  submit(1, 2, ReadUrgency::look_ahead);
  queue_->cancel(1);
  EXPECT_EQ(queue_->poll()->result.error().kind, ErrorKind::cancelled);
  queue_->cancel(1);
}

TEST_F(ReadQueueTest, a_short_read_goes_on_at_the_block_where_it_stopped) {
  submit(1, 2);
  ReadSegment segment = take();
  EXPECT_TRUE(queue_->advance(segment, -EINTR));
  EXPECT_EQ(segment.offset, 100 * block);
  EXPECT_TRUE(queue_->advance(segment, block + 5));
  EXPECT_EQ(segment.offset, 101 * block);
  EXPECT_EQ(segment.target, memory_.data() + block);
  EXPECT_EQ(segment.bytes, block);
  end(segment, block);
  EXPECT_TRUE(queue_->poll()->result.ok());
}

TEST_F(ReadQueueTest, a_short_file_is_one_error_that_counts_from_the_start_of_the_request) {
  submit(1, 6);
  ReadSegment first = take(), second = take(), third = take();
  end(third, 0);
  EXPECT_TRUE(queue_->advance(second, 5));  // ends inside a block
  end(second, 5);
  finish(first);
  EXPECT_EQ(queue_->poll()->result.error().message,
            "experts-003.safetensors: read at 409600: wanted 24576 bytes, got 8197: the file is "
            "short");
  EXPECT_FALSE(queue_->poll());
}

TEST_F(ReadQueueTest, after_a_failure_no_further_segment_begins) {
  submit(1, 6);
  ReadSegment first = take();
  end(first, -EIO);
  EXPECT_FALSE(queue_->try_take());
  const ReadCompletion completion = queue_->poll().value();
  EXPECT_EQ(completion.result.error().kind, ErrorKind::io);
  EXPECT_THAT(completion.result.error().message,
              testing::HasSubstr("read at 409600: wanted 24576 bytes, got 0: Input/output error"));
  EXPECT_EQ(queue_->counters().failures, 1);
}

TEST_F(ReadQueueTest, nothing_begins_after_close) {
  submit(1, 6);
  take();
  queue_->close();
  EXPECT_FALSE(queue_->try_take());
  EXPECT_FALSE(queue_->take());
}

}  // namespace
}  // namespace glmd
