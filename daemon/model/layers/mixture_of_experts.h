// A sparse layer's feed-forward part: router, routed experts from the cache,
// shared expert. Thread: compute.
#pragma once

#include <span>

#include "experts/expert_cache.h"
#include "model/layer_weights.h"
#include "model/workspace.h"

namespace glmd {

// workspace.update = weighted sum of the chosen experts in routing order, then the shared expert;
// reads workspace.normed_rows. Fails where a router score is not finite or an expert cannot be
// read.
Result<void> run_mixture_of_experts(const Compute& compute, const CheckpointConfig& config,
                                    const LayerWeights& weights, ExpertCache& cache,
                                    int64_t row_count, Workspace& workspace);

}  // namespace glmd
