// The tensors of one layer, bound by name once at load. Pointers live as long as DenseWeights.
#pragma once

#include <optional>
#include <vector>

#include "experts/run_experts.h"
#include "kernels/block_formats.h"
#include "storage/checkpoint_config.h"
#include "storage/dense_weights.h"

namespace glmd {

struct IndexerWeights {
  Matrix q_b, k, head_weights;
  const float* k_norm;
  const float* k_norm_bias;
};

struct FeedForwardWeights {
  Matrix gate_up, down;
};

struct RoutedWeights {
  Matrix router;
  const float* bias;
  ExpertRange experts;  // in the cache
  ExpertShape shape;
};

struct LayerWeights {
  const float* input_norm;
  const float* post_attention_norm;
  Matrix q_a, q_b, kv_a, k_b, v_b, o;
  const float* q_a_norm;
  const float* kv_a_norm;
  std::optional<IndexerWeights> indexer;
  FeedForwardWeights feed_forward;      // the dense layer's, or the shared expert's
  std::optional<RoutedWeights> routed;  // sparse layers
};

struct DraftWeights {
  const float* embedding_norm;
  const float* hidden_norm;
  Matrix eh_proj;
  const float* head_norm;
};

LayerWeights bind_layer(const DenseWeights& weights, const CheckpointConfig& config, int64_t layer);
DraftWeights bind_draft(const DenseWeights& weights, const CheckpointConfig& config);

}  // namespace glmd
