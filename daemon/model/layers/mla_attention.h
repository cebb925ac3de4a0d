// Multi-head latent attention in absorbed form (DeepSeek-V2, arXiv 2405.04434, 2.1): keys and
// values are one latent per token, read from the cache after their round trip through its format.
// Thread: compute.
#pragma once

#include <span>

#include "model/families/glm/layer_weights.h"
#include "model/workspace.h"

namespace glmd {

// workspace.update = attention output of `layer` for every row; reads workspace.normed_rows. Full
// layers renew the workspace's selection, shared ones use it.
void run_attention(const Compute& compute, const CheckpointConfig& config, float latent_norm_eps,
                   const LayerWeights& weights, int64_t layer, const CacheLayout& layout,
                   std::span<const PassRow> rows, Workspace& workspace);

}  // namespace glmd
