// A disk that takes no time: every read is done at once, and nothing is read. For what only counts
// reads. Thread: compute.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "experts/expert_cache.h"
#include "storage/block_reader.h"

namespace glmd {

class InstantReader : public BlockReader {
 public:
  void submit(const ReadRequest& request) override { tags_.push_back(request.tag); }
  void promote(uint64_t) override {}
  void cancel(uint64_t) override {}
  int64_t outstanding() const override { return std::ssize(tags_); }
  std::optional<ReadCompletion> poll() override {
    if (tags_.empty()) return std::nullopt;
    const uint64_t tag = tags_.back();
    tags_.pop_back();
    return ReadCompletion{tag, {}};
  }
  std::optional<ReadCompletion> wait_for(int64_t) override { return poll(); }

 private:
  std::vector<uint64_t> tags_;
};

// A layer's step in a cache over that disk, as run_experts() goes about it: the experts that were
// not in memory.
std::vector<int32_t> run_step(ExpertCache& cache, ExpertRange layer,
                              std::span<const ExpertWant> wants, Pace pace);

}  // namespace glmd
