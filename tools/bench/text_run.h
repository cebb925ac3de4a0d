// The texts of a routing table, decoded one after the other and timed token by token.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "experts/expert_cache.h"
#include "model/model.h"
#include "stream_slice.h"

namespace glmd {

constexpr int64_t prompt_tokens = 8;  // of a text, read at once; the others are decoded

struct Run {
  std::vector<double> seconds;  // of each decoded token
  ExpertCacheStats stats;       // of these tokens
  double head_seconds = 0;      // of these, the output head
  double total_seconds() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
  void add(const Run& next);
};

class TextRun {
 public:
  TextRun(Model& model, RoutingTable& routing) : model_(model), routing_(routing) {}

  // Decodes so many tokens more, or fewer once `seconds_max` have passed; prompts in between are
  // read and not counted.
  Result<Run> decode(int64_t tokens, double seconds_max = std::numeric_limits<double>::infinity());

 private:
  Result<void> step(int64_t rows);

  Model& model_;
  RoutingTable& routing_;
  std::unique_ptr<SequenceState> sequence_;
  int64_t first_ = 0, position_ = 0;  // of the text, in it
};

}  // namespace glmd
