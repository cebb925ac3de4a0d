// How often each expert was used, over months: counted with a half-life of tokens and kept in a
// file, so that a start does not begin with a cold cache. It is a hint (what to read first, and a
// few tokens' weight of heat), never a promise: another model's history or a damaged file is
// dropped. The file is little-endian: "GLMDUSES", u32 version, u32 layers, u32 experts, u32 0, u64
// model identity, f32 count [layers with experts][experts], u64 XXH3-64 of all before it.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/routing_observer.h"
#include "experts/routing_trace.h"
#include "platform/result.h"

namespace glmd {

constexpr double history_half_life_tokens = 16384;

class UsageHistory : public RoutingObserver {
 public:
  explicit UsageHistory(const RoutingShape& shape);

  // Replaces what was counted. On failure nothing changes; not_found where there is no file;
  // corrupt and bad_input where it is a damaged one and another model's, config where it is
  // something else or a newer version's.
  Result<void> load(const std::string& path);
  // Whole or not at all. True where something was written: false if nothing changed since the last
  // time or the load. Thread: any, one at a time; counting waits only while the counts are copied.
  Result<bool> save(const std::string& path);

  void routed(const RoutedRows& rows) override;

  // [layers with experts][experts], as the cache numbers its experts. Thread: any.
  std::vector<float> counts() const;

 private:
  // Instead of decaying every count at each token, what is added grows: a count is
  // values[expert] / weight.
  struct Layer {
    std::vector<double> values;
    double weight = 1;
  };

  uint64_t identity_;
  int64_t experts_, chosen_;
  std::vector<int32_t> index_;  // of the model's layer in layers_; -1: dense

  mutable std::mutex mutex_;
  std::vector<Layer> layers_;
  int64_t changes_ = 0, saved_changes_ = 0;
};

// The counts scaled so that each layer's weigh as much as `tokens` tokens of `chosen` experts: what
// a cache may be seeded with. A layer without a history stays at 0.
std::vector<float> usage_prior(std::span<const float> counts, int64_t experts, int64_t chosen,
                               double tokens);

// Which experts to read at a start while nothing is asked, and in what order: those used most, as
// many as the arena holds, in groups of 64 from the most used on, each group in the order it lies
// on disk. Experts never used are not read. `counts` and `extents` have the cache's numbering; of
// the draft layer's experts, last in both, either may have none. Where experts have several sizes,
// the cache may have no free slot for one: then pass over it.
std::vector<int32_t> warm_start_order(std::span<const float> counts,
                                      std::span<const ExpertExtent> extents, int64_t arena_bytes);

}  // namespace glmd
