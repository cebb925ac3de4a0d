// A block reader that misbehaves as a seed says: it delays, reorders, shortens and fails reads,
// flips bits, drops what is cancelled or delivers it all the same, and scribbles over targets that
// are not yet whole.
#pragma once

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "storage/block_reader.h"
#include "storage/completion_queue.h"

namespace glmd {

class FaultyReader : public BlockReader {
 public:
  // `content` is the file; offsets of requests lie in it.
  FaultyReader(const std::vector<uint8_t>& content, uint32_t seed, double fault_share)
      : content_(content), random_(seed), fault_share_(fault_share) {}

  void submit(const ReadRequest& request) override {
    for (const ReadRequest& other : waiting_) CHECK(other.tag != request.tag);
    std::fill_n(request.target, request.bytes, uint8_t{0xA5});
    if (hang_share > 0 && share() < hang_share) {
      hanging_.push_back({.request = request, .waits_left = static_cast<int64_t>(random_() % 20)});
      ++hanging_count;
    } else {
      waiting_.push_back(request);
    }
    submitted.push_back(request.offset);
  }
  void promote(uint64_t tag) override {
    for (ReadRequest& request : waiting_) {
      if (request.tag == tag) request.urgency = ReadUrgency::demand;
    }
  }
  void cancel(uint64_t tag) override {
    for (Hanging& one : hanging_) one.is_cancelled |= one.request.tag == tag;
    const auto request = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&](const ReadRequest& one) { return one.tag == tag; });
    if (request == waiting_.end() || share() < 0.5) return;  // under way already
    done_.push_back({tag, error(ErrorKind::cancelled, "read cancelled")});
    waiting_.erase(request);
  }
  int64_t outstanding() const override {
    return static_cast<int64_t>(waiting_.size() + done_.size() + hanging_.size());
  }
  std::vector<uint64_t> stranded() const override {
    std::vector<uint64_t> tags;
    for (const Hanging& one : hanging_) tags.push_back(one.request.tag);
    return tags;
  }
  ReadCounters counters() const override { return {.busy_ns = busy_ns}; }
  std::optional<ReadCompletion> poll() override {
    if (outstanding() == 0 || share() < silent_share) return std::nullopt;
    return next_unless_it_hangs();
  }
  std::optional<ReadCompletion> wait_for(int64_t) override {
    if (slices_to_hang > 0) {
      --slices_to_hang;
      return std::nullopt;
    }
    return next_unless_it_hangs();
  }

  std::vector<int64_t> submitted;  // offsets, in order
  int64_t checked_count = 0;       // reads that came and were hashed
  int64_t busy_ns = 0;
  int64_t slices_to_hang = 0;  // waits that end with nothing
  double hang_share = 0;       // of reads: they hang for some waits on one of several disks
  int64_t hanging_count = 0;   // so far
  bool hangs_forever = false;
  double silent_share = 0.5;  // of polls: they find nothing though reads are under way

 private:
  struct Hanging {
    ReadRequest request;
    int64_t waits_left = 0;
    bool is_cancelled = false;
  };

  std::optional<ReadCompletion> next_unless_it_hangs() {
    if (!hanging_.empty()) let_hang();
    if (!hanging_.empty() && waiting_.empty() && done_.empty()) return std::nullopt;
    return next();
  }
  // Time passes: the disk writes what it likes until it is done with the target.
  void let_hang() {
    CHECK(++waits_in_vain_ < 10'000);
    for (size_t i = 0; i < hanging_.size();) {
      Hanging& one = hanging_[i];
      std::fill_n(one.request.target, one.request.bytes, uint8_t{0x5A});
      if (hangs_forever || one.waits_left-- > 0) {
        ++i;
        continue;
      }
      if (one.is_cancelled) {
        done_.push_back({one.request.tag, error(ErrorKind::cancelled, "read cancelled")});
      } else {
        waiting_.push_back(one.request);
      }
      hanging_.erase(hanging_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  ReadCompletion next() {
    waits_in_vain_ = 0;
    CHECK(outstanding() > 0);
    if (waiting_.empty() || (!done_.empty() && share() < 0.5)) {
      ReadCompletion completion = std::move(done_.front());
      done_.pop_front();
      return completion;
    }
    const ReadRequest request = take_next();
    const uint8_t* from = content_.data() + request.offset;
    if (share() >= fault_share_) {
      std::copy_n(from, request.bytes, request.target);
      return {request.tag, checked(request)};
    }
    const int64_t got = static_cast<int64_t>(random_()) % request.bytes;
    std::copy_n(from, got, request.target);
    if (share() < 0.4) {
      return {request.tag,
              error(ErrorKind::io, "experts.safetensors: read at {}: wanted {} bytes, got {}",
                    request.offset, request.bytes, got)};
    }
    if (share() < 0.5) {
      return {request.tag,
              error(ErrorKind::io, "experts.safetensors: read {} bytes at {}: Input/output error",
                    request.bytes, request.offset)};
    }
    std::copy_n(from, request.bytes, request.target);
    request.target[got] ^= static_cast<uint8_t>(1 << random_() % 8);
    return {request.tag, checked(request)};
  }

  double share() { return static_cast<double>(random_() % 1000) / 1000; }

  Result<void> checked(const ReadRequest& request) {
    if (!request.checksum) return {};
    ++checked_count;
    return compare_checksum(request);
  }

  // Demand first, else in any order.
  ReadRequest take_next() {
    std::vector<size_t> eligible;
    for (const ReadUrgency urgency : {ReadUrgency::demand, ReadUrgency::look_ahead}) {
      for (size_t i = 0; i < waiting_.size(); ++i) {
        if (waiting_[i].urgency == urgency) eligible.push_back(i);
      }
      if (!eligible.empty()) break;
    }
    const size_t index = eligible[random_() % eligible.size()];
    const ReadRequest request = waiting_[index];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
    return request;
  }

  const std::vector<uint8_t>& content_;
  std::vector<ReadRequest> waiting_;
  std::deque<ReadCompletion> done_;
  std::vector<Hanging> hanging_;
  int64_t waits_in_vain_ = 0;
  std::mt19937 random_;
  double fault_share_;
};

}  // namespace glmd
