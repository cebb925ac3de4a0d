// A block reader that misbehaves as its seed says: over any other, completions come late and in
// another order, short, as errors, or with a flipped bit. Thread: the compute thread's, like all
// block readers.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "storage/block_reader.h"
#include "storage/read_queue.h"

namespace glmd {

struct FaultShares {  // of completions, 0 to 1
  double late = 0;    // held back for a few polls
  double short_read = 0, failed = 0, flipped = 0;
  int64_t dies_after = INT64_MAX;  // reads; all later ones fail
};

class FaultReader : public BlockReader {
 public:
  // `signal`: that of the inner reader, if it has one; raised while completions are held back.
  FaultReader(std::unique_ptr<BlockReader> inner, const FaultShares& shares, uint32_t seed,
              ReadSignal* signal = nullptr)
      : inner_(std::move(inner)), shares_(shares), random_(seed), signal_(signal) {}

  void submit(const ReadRequest& request) override {
    requests_[request.tag] = request;
    inner_->submit(request);
  }
  void promote(uint64_t tag) override { inner_->promote(tag); }
  void cancel(uint64_t tag) override { inner_->cancel(tag); }
  int64_t outstanding() const override { return static_cast<int64_t>(requests_.size()); }
  ReadCounters counters() const override { return inner_->counters(); }
  int64_t fault_count() const { return fault_count_; }

  std::optional<ReadCompletion> wait_for(int64_t) override {
    for (;;) {
      if (held_.empty()) hold(inner_->wait());
      if (std::optional<ReadCompletion> completion = poll()) return completion;
    }
  }

  std::optional<ReadCompletion> poll() override {
    while (std::optional<ReadCompletion> completion = inner_->poll()) hold(std::move(*completion));
    std::vector<size_t> ready;
    for (size_t i = 0; i < held_.size(); ++i) {
      if (held_[i].polls_left-- <= 0) ready.push_back(i);
    }
    if (signal_ != nullptr && !held_.empty()) signal_->raise();
    if (ready.empty()) return std::nullopt;
    const size_t index = ready[random_() % ready.size()];
    ReadCompletion completion = std::move(held_[index].completion);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    requests_.erase(completion.tag);
    return completion;
  }

 private:
  struct Held {
    ReadCompletion completion;
    int polls_left = 0;
  };

  bool happens(double share) { return std::uniform_real_distribution<>(0, 1)(random_) < share; }

  void hold(ReadCompletion completion) {
    const int polls = happens(shares_.late) ? static_cast<int>(random_() % 8) : 0;
    if (completion.result.ok()) completion.result = spoil(requests_.at(completion.tag));
    held_.push_back({std::move(completion), polls});
  }

  Result<void> spoil(const ReadRequest& request) {
    const auto bytes = static_cast<size_t>(request.bytes);
    const bool is_dead = ++read_count_ > shares_.dies_after;
    if (is_dead || happens(shares_.failed)) {
      ++fault_count_;
      std::memset(request.target, 0xee, bytes);
      return error(ErrorKind::io, "file {}: read at {}: wanted {} bytes, got 0: spoilt by the test",
                   request.file, request.offset, request.bytes);
    }
    if (happens(shares_.short_read)) {
      ++fault_count_;
      const size_t got = random_() % bytes;
      std::memset(request.target + got, 0xee, bytes - got);
      return error(ErrorKind::bad_input,
                   "file {}: read at {}: wanted {} bytes, got {}: the file is short", request.file,
                   request.offset, request.bytes, got);
    }
    if (happens(shares_.flipped)) {
      ++fault_count_;
      request.target[random_() % bytes] ^= static_cast<uint8_t>(1U << random_() % 8);
    }
    return {};
  }

  std::unique_ptr<BlockReader> inner_;
  const FaultShares shares_;
  std::mt19937 random_;
  ReadSignal* signal_;
  std::unordered_map<uint64_t, ReadRequest> requests_;  // outstanding
  std::vector<Held> held_;
  int64_t read_count_ = 0, fault_count_ = 0;
};

}  // namespace glmd
