// The sparse indexer (DeepSeek sparse attention, arXiv 2512.02556, 2.1): writes index keys, and
// beyond index_topk visible tokens picks the positions that attention may see. Thread: compute.
#pragma once

#include <cstdint>
#include <span>

#include "model/families/glm/layer_weights.h"
#include "model/workspace.h"

namespace glmd {

// For every row: its index key into the cache of `layer`, then its selection into the workspace.
// Reads normed_rows and query_rank of the workspace.
void run_indexer(const Compute& compute, const CheckpointConfig& config,
                 const IndexerWeights& weights, int64_t layer, const CacheLayout& layout,
                 std::span<const PassRow> rows, Workspace& workspace);

}  // namespace glmd
