// Disks of unequal speeds: a scripted clock instead of a disk, so that shares and times are exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>

#include "platform/aligned_memory.h"
#include "storage/replica_set.h"

namespace glmd {
namespace {

constexpr int64_t request_bytes = int64_t{20} << 20;  // an expert of GLM-5.2

// The time that disks and the set of them go by.
class ScriptedClock : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_; }
  void advance_to(int64_t ns) { now_ns_ = std::max(now_ns_, ns); }

 private:
  int64_t now_ns_ = 0;
};

class ScriptedReader : public BlockReader {
 public:
  void promote(uint64_t) override {}
  void cancel(uint64_t) override {}
  std::optional<ReadCompletion> wait_for(int64_t) override { return poll(); }
  virtual int64_t next_ns() const = 0;  // when something is to be taken
};

// Serves its requests in order, each at the disk's speed when it begins; reads nothing. What is
// wanted comes before look-ahead, as from every reader.
class PacedReader : public ScriptedReader {
 public:
  PacedReader(const Clock& clock, const double& bytes_per_ns)
      : clock_(clock), bytes_per_ns_(bytes_per_ns) {}

  void submit(const ReadRequest& request) override {
    free_at_ns_ = std::max(free_at_ns_, clock_.now_ns());
    const auto length_ns = static_cast<int64_t>(static_cast<double>(request.bytes) / bytes_per_ns_);
    free_at_ns_ += length_ns;
    reads_.push_back({request.tag, request.bytes, length_ns, free_at_ns_});
  }
  std::optional<ReadCompletion> poll() override {
    if (next_ns() > clock_.now_ns()) return std::nullopt;
    const Read read = reads_.front();
    reads_.pop_front();
    counters_.bytes += read.bytes;
    counters_.busy_ns += read.length_ns;
    return ReadCompletion{.tag = read.tag, .result = {}};
  }
  int64_t outstanding() const override { return std::ssize(reads_); }
  ReadCounters counters() const override { return counters_; }
  int64_t next_ns() const override {
    return reads_.empty() ? std::numeric_limits<int64_t>::max() : reads_.front().done_ns;
  }

 private:
  struct Read {
    uint64_t tag = 0;
    int64_t bytes = 0, length_ns = 0, done_ns = 0;
  };
  const Clock& clock_;
  const double& bytes_per_ns_;
  std::deque<Read> reads_;
  int64_t free_at_ns_ = 0;
  ReadCounters counters_;
};

// A disk whose completions come 16 segments at once, each of which is seen by itself: what it has
// worked on is counted late, and then in no time.
class BurstReader : public ScriptedReader {
 public:
  BurstReader(const Clock& clock, const double& bytes_per_ns)
      : clock_(clock), bytes_per_ns_(bytes_per_ns) {}

  void submit(const ReadRequest& request) override {
    if (reads_.empty()) free_at_ns_ = clock_.now_ns();
    reads_.push_back({request.tag, request.bytes});
    for (int64_t begin = 0; begin < request.bytes; begin += segment_bytes) {
      const int64_t bytes = std::min(segment_bytes, request.bytes - begin);
      const auto length_ns = static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_ns_);
      free_at_ns_ += length_ns;
      segments_.push_back({bytes, length_ns, free_at_ns_});
    }
  }
  std::optional<ReadCompletion> poll() override {
    if (next_ns() > clock_.now_ns()) return std::nullopt;
    const Segment segment = segments_.front();
    segments_.pop_front();
    burst_left_ = (burst_left_ == 0 ? burst_segments : burst_left_) - 1;
    if (segments_.empty()) burst_left_ = 0;
    counters_.bytes += segment.bytes;
    done_busy_ns_ += segment.length_ns;
    Read& read = reads_.front();
    read.bytes_left -= segment.bytes;
    if (read.bytes_left > 0) return std::nullopt;
    const uint64_t tag = read.tag;
    reads_.pop_front();
    return ReadCompletion{.tag = tag, .result = {}};
  }
  int64_t outstanding() const override { return std::ssize(reads_); }
  // Busy also with what has not been counted yet.
  ReadCounters counters() const override {
    ReadCounters counters = counters_;
    counters.busy_ns = done_busy_ns_;
    for (const Segment& segment : segments_) {
      const int64_t begun_ns = segment.done_ns - segment.length_ns;
      counters.busy_ns += std::clamp<int64_t>(clock_.now_ns() - begun_ns, 0, segment.length_ns);
    }
    return counters;
  }
  int64_t next_ns() const override {
    if (segments_.empty()) return std::numeric_limits<int64_t>::max();
    if (burst_left_ > 0) return clock_.now_ns();
    return segments_[std::min<size_t>(burst_segments, segments_.size()) - 1].done_ns;
  }

 private:
  static constexpr int64_t segment_bytes = int64_t{2} << 20;
  static constexpr size_t burst_segments = 16;
  struct Read {
    uint64_t tag = 0;
    int64_t bytes_left = 0;
  };
  struct Segment {
    int64_t bytes = 0, length_ns = 0, done_ns = 0;
  };
  const Clock& clock_;
  const double& bytes_per_ns_;
  std::deque<Read> reads_;
  std::deque<Segment> segments_;
  size_t burst_left_ = 0;  // segments of a burst that has come
  int64_t free_at_ns_ = 0, done_busy_ns_ = 0;
  ReadCounters counters_;
};

class DiskShares : public testing::Test {
 protected:
  // Disks of so many bytes a nanosecond (GB/s).
  template <typename Reader = PacedReader>
  void open(std::vector<double> speeds) {
    speeds_ = std::move(speeds);
    readers_.resize(speeds_.size());
    std::vector<ReplicaSource> sources;
    for (size_t i = 0; i < speeds_.size(); ++i) {
      sources.push_back({.name = "disk " + std::to_string(i), .open = [this, i](ReadSignal&) {
                           auto reader = std::make_unique<Reader>(clock_, speeds_[i]);
                           readers_[i] = reader.get();
                           ReplicaCopy copy;
                           copy.reader = std::move(reader);
                           copy.file_of = {0};
                           return Result<ReplicaCopy>(std::move(copy));
                         }});
    }
    set_ = ReplicaSet::open(std::move(sources), clock_).value();
    memory_ = AlignedMemory::allocate(request_bytes).value();
  }

  // So many reads, `depth` of them under way at once; the nanoseconds they took.
  int64_t read(int count, int depth) {
    const int64_t begin_ns = clock_.now_ns();
    for (int done = 0, begun = 0; done < count;) {
      for (; begun < count && set_->outstanding() < depth; ++begun) {
        set_->submit({.file = 0,
                      .offset = 0,
                      .bytes = request_bytes,
                      .target = memory_.data(),
                      .tag = next_tag_++});
      }
      if (set_->poll()) {
        ++done;
        continue;
      }
      int64_t next_ns = std::numeric_limits<int64_t>::max();
      for (const ScriptedReader* reader : readers_) next_ns = std::min(next_ns, reader->next_ns());
      clock_.advance_to(next_ns);
    }
    return clock_.now_ns() - begin_ns;
  }

  // Of the bytes of `count` reads, the part that each disk gave; the time is to be that of all
  // disks together, within `slack`.
  std::vector<double> shares_of(int count, int depth, double slack) {
    std::vector<int64_t> before;
    for (const DiskStatus& disk : set_->disks()) before.push_back(disk.counters.bytes);
    const int64_t took_ns = read(count, depth);
    double all = 0;
    for (const double speed : speeds_) all += speed;
    EXPECT_LE(static_cast<double>(took_ns), (1 + slack) * count * request_bytes / all);
    std::vector<double> shares;
    for (size_t i = 0; i < before.size(); ++i) {
      const int64_t bytes = set_->disks()[i].counters.bytes - before[i];
      shares.push_back(static_cast<double>(bytes) / (static_cast<double>(count) * request_bytes));
    }
    return shares;
  }

  std::vector<double> speeds_;
  ScriptedClock clock_;
  std::unique_ptr<ReplicaSet> set_;  // refers to the clock and the speeds
  std::vector<ScriptedReader*> readers_;
  AlignedMemory memory_;
  uint64_t next_tag_ = 0;
};

TEST_F(DiskShares, are_in_proportion_to_speeds_and_all_disks_end_together) {
  for (const int depth : {1, 2, 8}) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    open({7.0, 3.5, 1.4});
    read(20, depth);  // measured
    const std::vector<double> shares = shares_of(100, depth, 0.02);
    EXPECT_NEAR(shares[0], 7.0 / 11.9, 0.01);
    EXPECT_NEAR(shares[1], 3.5 / 11.9, 0.01);
    EXPECT_NEAR(shares[2], 1.4 / 11.9, 0.01);
  }
}

TEST_F(DiskShares, follow_a_disk_that_becomes_slower_and_faster_again) {
  open({3.5, 3.5});
  read(20, 2);
  EXPECT_NEAR(shares_of(100, 2, 0.02)[0], 0.5, 0.01);
  speeds_[1] = 0.7;
  read(60, 2);
  EXPECT_NEAR(shares_of(100, 2, 0.02)[0], 3.5 / 4.2, 0.01);
  speeds_[1] = 3.5;
  read(60, 2);
  EXPECT_NEAR(shares_of(100, 2, 0.02)[0], 0.5, 0.01);
}

// A share below half a MiB is not worth a read: such a disk gives a whole share now and then, when
// what is before the others has grown so long that it would be of use.
TEST_F(DiskShares, a_disk_far_slower_than_the_other_costs_little) {
  open({7.0, 0.05});
  read(20, 2);
  const std::vector<double> shares = shares_of(100, 2, 0.05);
  EXPECT_GT(shares[0], 0.98);
}

// A burst is at most an eighth of what an estimate is made of.
TEST_F(DiskShares, are_those_of_disks_that_complete_in_bursts_too) {
  open<BurstReader>({3.5, 1.4});
  read(60, 8);
  for (int look = 0; look < 50; ++look) {
    read(7, 8);
    const std::vector<DiskStatus> disks = set_->disks();
    EXPECT_NEAR(disks[0].bytes_per_second, 3.5e9, 3.5e9 / 8);
    EXPECT_NEAR(disks[1].bytes_per_second, 1.4e9, 1.4e9 / 8);
  }
  EXPECT_NEAR(shares_of(200, 8, 0.1)[0], 3.5 / 4.9, 0.03);
}

}  // namespace
}  // namespace glmd
