#include "model/families/glm/layer_weights.h"

#include <fmt/format.h>

namespace glmd {
namespace {

class Binder {
 public:
  Binder(const DenseWeights& weights, int64_t layer)
      : weights_(weights), prefix_(fmt::format("layers.{}.", layer)) {}

  Matrix matrix(std::string_view name) const { return weights_.matrix(full(name)); }
  const float* vector(std::string_view name) const { return weights_.vector(full(name)); }

 private:
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }
  const DenseWeights& weights_;
  std::string prefix_;
};

}  // namespace

LayerWeights bind_layer(const DenseWeights& weights, const CheckpointConfig& config,
                        int64_t layer) {
  const Binder bind(weights, layer);
  LayerWeights bound{.input_norm = bind.vector("input_norm"),
                     .post_attention_norm = bind.vector("post_attention_norm"),
                     .q_a = bind.matrix("attention.q_a"),
                     .q_b = bind.matrix("attention.q_b"),
                     .kv_a = bind.matrix("attention.kv_a"),
                     .k_b = bind.matrix("attention.k_b"),
                     .v_b = bind.matrix("attention.v_b"),
                     .o = bind.matrix("attention.o"),
                     .q_a_norm = bind.vector("attention.q_a_norm"),
                     .kv_a_norm = bind.vector("attention.kv_a_norm"),
                     .indexer = std::nullopt,
                     .feed_forward = {},
                     .routed = std::nullopt};
  if (config.indexer_full[layer]) {
    bound.indexer = IndexerWeights{.q_b = bind.matrix("indexer.q_b"),
                                   .k = bind.matrix("indexer.k"),
                                   .head_weights = bind.matrix("indexer.weights"),
                                   .k_norm = bind.vector("indexer.k_norm"),
                                   .k_norm_bias = bind.vector("indexer.k_norm_bias")};
  }
  if (config.is_sparse[layer]) {
    bound.feed_forward = {bind.matrix("shared.gate_up"), bind.matrix("shared.down")};
    bound.routed = RoutedWeights{.router = bind.matrix("router"),
                                 .bias = bind.vector("router_bias"),
                                 .experts = {},
                                 .shape = {}};
  } else {
    bound.feed_forward = {bind.matrix("mlp.gate_up"), bind.matrix("mlp.down")};
  }
  return bound;
}

DraftWeights bind_draft(const DenseWeights& weights, const CheckpointConfig& config) {
  const Binder bind(weights, config.layers);
  return {.embedding_norm = bind.vector("embedding_norm"),
          .hidden_norm = bind.vector("hidden_norm"),
          .eh_proj = bind.matrix("eh_proj"),
          .head_norm = bind.vector("head_norm")};
}

}  // namespace glmd
