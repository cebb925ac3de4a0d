// A recorded or made-up sequence of routing choices, run through caches of any size and policy:
// what would have been read. Layers share one arena, as in the daemon, unless a trace is split by
// layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experts/routing_trace.h"
#include "experts/synthetic_routing.h"
#include "platform/result.h"

namespace glmd {

// One layer of one pass: the distinct experts that its rows chose.
struct ReplayStep {
  uint32_t first_use = 0, use_count = 0;  // in ReplayTrace::uses
  uint16_t rows = 0;
  uint16_t layer = 0;
  bool is_counted = false;  // not part of the warm-up
};

struct ReplayUse {
  uint16_t expert = 0;  // within its layer
  uint16_t rows = 0;    // that chose it
};

// Traces are long: 16 bytes a step and 4 a use.
struct ReplayTrace {
  static constexpr int64_t rows_max = UINT16_MAX, uses_max = UINT32_MAX;

  int64_t experts_per_layer = 0;
  std::vector<int64_t> expert_bytes;  // of each layer that has experts
  int64_t counted_tokens = 0;         // after the warm-up
  std::vector<ReplayStep> steps;
  std::vector<ReplayUse> uses;  // in the order of routing: first row, best score first

  int64_t layer_count() const { return static_cast<int64_t>(expert_bytes.size()); }
  int64_t expert_count() const { return layer_count() * experts_per_layer; }
  std::span<const ReplayUse> uses_of(const ReplayStep& step) const {
    return {uses.data() + step.first_use, static_cast<size_t>(step.use_count)};
  }
  // Experts of all layers are numbered layer by layer.
  int32_t first_expert(const ReplayStep& step) const {
    return static_cast<int32_t>(step.layer * experts_per_layer);
  }
  // `choices` are [rows][chosen], ids within the layer; `layer` counts those with experts.
  void add(int64_t layer, int64_t rows, std::span<const int32_t> choices, bool is_counted);
};

// What is left of a trace: its layers that occur, in the order of the model. Every layer's first
// `warm_up_tokens` rows (unset: a quarter) fill the cache and are not counted.
Result<ReplayTrace> recorded_trace(RoutingTraceReader& reader,
                                   std::optional<int64_t> warm_up_tokens);
// `tokens` tokens one by one; the first `warm_up_tokens` fill the cache and are not counted.
ReplayTrace synthetic_trace(const SyntheticRoutingOptions& options, int64_t tokens,
                            int64_t warm_up_tokens, int64_t expert_bytes);
// A trace for each layer, to give each its own slots.
std::vector<ReplayTrace> split_by_layer(const ReplayTrace& trace);

struct ReplayTotals {
  int64_t wanted = 0, hits = 0, read_bytes = 0;
  double hit_rate() const;
};

struct ReplayPolicy {
  enum class Kind {
    daemon,   // the ExpertCache itself, over a disk that takes no time
    lru,      // expert after expert; the one unused for longest goes
    lfu,      // expert after expert; the one used least often since the beginning goes
    optimum,  // Belady's: a step's experts are known, the one wanted furthest ahead goes
  } kind = Kind::daemon;
  double half_life_tokens = 0;  // daemon: 0 is that of the daemon for this size
};

// "glmd", "lru", "lfu", "belady", or "decay:TOKENS": glmd with another half-life.
Result<ReplayPolicy> parse_policy(std::string_view name);

ReplayTotals replay(const ReplayTrace& trace, const ReplayPolicy& policy, int64_t slot_count);

}  // namespace glmd
