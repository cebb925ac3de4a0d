// What glmd-eval measures: logits, greedy continuations, perplexity and answered questions, on any
// container. Teacher-forced and greedy runs feed `step_rows` tokens a pass; results do not depend
// on it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "platform/json.h"

namespace glmd {

// Row p: logits after ids[0..p]. `draft` (may be null) gets the draft layer's rows, one fewer.
using RowSink = std::function<Result<void>(std::span<const float> row)>;
Result<void> forced_logits(Model& model, std::span<const int32_t> ids, int64_t step_rows,
                           const RowSink& sink, const RowSink* draft_sink);

// The `count` ids that follow under argmax. Ids for which `is_allowed` is false are passed over;
// the run ends early at an id for which `is_stop` is true (that id is the last).
struct GreedyRule {
  int64_t count = 0;
  std::function<bool(int32_t)> is_allowed;
  std::function<bool(int32_t)> is_stop;
};
Result<std::vector<int32_t>> greedy(Model& model, std::span<const int32_t> ids, int64_t step_rows,
                                    const GreedyRule& rule);

// exp of the mean negative log likelihood of ids in windows: each of `window` scored ids after up
// to `context` ids of its past, with `prefix` in front.
struct Perplexity {
  double value = 0;
  int64_t scored_tokens = 0;
};
Result<Perplexity> perplexity(Model& model, std::span<const int32_t> ids,
                              std::span<const int32_t> prefix, int64_t window, int64_t context);

}  // namespace glmd
