// A sparse layer's feed-forward part: router, routed experts from the cache,
// shared expert. Thread: compute.
#pragma once

#include <span>

#include "experts/expert_cache.h"
#include "model/families/glm/layer_weights.h"
#include "model/workspace.h"

namespace glmd {

struct RoutedLayer {
  int64_t layer = 0;
  const LayerWeights& weights;
  const LayerWeights* next = nullptr;  // whose experts are read ahead; null: none
  Pace pace = Pace::step;
  RoutingSource* routing = nullptr;  // null: the routers route
};

// workspace.update = weighted sum of the chosen experts in routing order, then the shared expert;
// reads workspace.normed_rows and, for the guess of what the next layer wants, workspace.hidden.
// Fails where a router score is not finite or an expert cannot be read.
Result<void> run_mixture_of_experts(const Compute& compute, const CheckpointConfig& config,
                                    const RoutedLayer& routed, ExpertCache& cache,
                                    std::span<const PassRow> rows, Workspace& workspace);

// Reads what `routed.next` is likely to want: its router on workspace.hidden and, where `shared` is
// not null, this layer's shared expert [rows][hidden]. A routed layer does so by itself, a dense
// one before its own arithmetic. A guess that fails costs nothing but itself.
void read_ahead(const Compute& compute, const CheckpointConfig& config, const RoutedLayer& routed,
                ExpertCache& cache, std::span<const PassRow> rows, const float* shared,
                Workspace& workspace);

}  // namespace glmd
