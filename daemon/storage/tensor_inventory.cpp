#include "storage/tensor_inventory.h"

namespace glmd {
namespace {

// Collects the tensors of one layer (or of none).
class Collector {
 public:
  Collector(std::vector<InventoryEntry>& out, std::string prefix, int64_t layer, bool is_draft)
      : out_(out), prefix_(std::move(prefix)), layer_(layer), is_draft_(is_draft) {}

  void matrix(const char* name, TensorKind kind, int64_t rows, int64_t columns) {
    add(name, TensorLayout::matrix, kind, rows, columns);
  }
  void gate_up(const char* name, int64_t rows, int64_t columns) {
    add(name, TensorLayout::gate_up, TensorKind::projection, rows, columns);
  }
  void vector(const char* name, int64_t length) {
    add(name, TensorLayout::vector, TensorKind::vector, 1, length);
  }
  InventoryEntry& add(const std::string& name, TensorLayout layout, TensorKind kind, int64_t rows,
                      int64_t columns) {
    out_.push_back({.name = prefix_ + name,
                    .layout = layout,
                    .kind = kind,
                    .rows = rows,
                    .columns = columns,
                    .layer = layer_,
                    .is_draft = is_draft_});
    return out_.back();
  }

 private:
  std::vector<InventoryEntry>& out_;
  std::string prefix_;
  int64_t layer_;
  bool is_draft_;
};

void list_attention(const CheckpointConfig& config, bool has_indexer, Collector& layer) {
  layer.vector("input_norm", config.hidden_size);
  layer.vector("post_attention_norm", config.hidden_size);
  const auto projection = TensorKind::projection;
  layer.matrix("attention.q_a", projection, config.q_lora_rank, config.hidden_size);
  layer.vector("attention.q_a_norm", config.q_lora_rank);
  layer.matrix("attention.q_b", projection, config.heads * config.qk_head_dim(),
               config.q_lora_rank);
  layer.matrix("attention.kv_a", projection, config.kv_lora_rank + config.qk_rope_head_dim,
               config.hidden_size);
  layer.vector("attention.kv_a_norm", config.kv_lora_rank);
  layer.matrix("attention.k_b", projection, config.heads * config.kv_lora_rank,
               config.qk_nope_head_dim);
  layer.matrix("attention.v_b", projection, config.heads * config.v_head_dim, config.kv_lora_rank);
  layer.matrix("attention.o", projection, config.hidden_size, config.heads * config.v_head_dim);
  if (!has_indexer) return;
  const auto indexer = TensorKind::indexer;
  layer.matrix("indexer.q_b", indexer, config.index_n_heads * config.index_head_dim,
               config.q_lora_rank);
  layer.matrix("indexer.k", indexer, config.index_head_dim, config.hidden_size);
  layer.vector("indexer.k_norm", config.index_head_dim);
  layer.vector("indexer.k_norm_bias", config.index_head_dim);
  layer.matrix("indexer.weights", indexer, config.index_n_heads, config.hidden_size);
}

void list_sparse(const CheckpointConfig& config, Collector& layer) {
  const int64_t hidden = config.hidden_size;
  layer.matrix("router", TensorKind::router, config.n_routed_experts, hidden);
  layer.vector("router_bias", config.n_routed_experts);
  layer.gate_up("shared.gate_up", config.shared_intermediate_size(), hidden);
  layer.matrix("shared.down", TensorKind::projection, hidden, config.shared_intermediate_size());
}

void list_draft(const CheckpointConfig& config, Collector& layer) {
  layer.vector("embedding_norm", config.hidden_size);
  layer.vector("hidden_norm", config.hidden_size);
  layer.matrix("eh_proj", TensorKind::projection, config.hidden_size, 2 * config.hidden_size);
  layer.vector("head_norm", config.hidden_size);
  layer
      .add("embedding", TensorLayout::embedding, TensorKind::embedding, config.vocabulary,
           config.hidden_size)
      .is_optional = true;
  layer
      .add("head", TensorLayout::matrix, TensorKind::embedding, config.vocabulary,
           config.hidden_size)
      .is_optional = true;
}

}  // namespace

std::vector<InventoryEntry> list_tensors(const CheckpointConfig& config) {
  std::vector<InventoryEntry> out;
  Collector global(out, "", -1, false);
  global.add("embedding", TensorLayout::embedding, TensorKind::embedding, config.vocabulary,
             config.hidden_size);
  global.matrix("head", TensorKind::embedding, config.vocabulary, config.hidden_size);
  global.vector("norm", config.hidden_size);
  for (int64_t index = 0; index < config.all_layers(); ++index) {
    const bool is_draft = config.is_draft(index);
    const auto at = static_cast<size_t>(index);
    Collector layer(out, fmt::format("layers.{}.", index), index, is_draft);
    if (is_draft) list_draft(config, layer);
    list_attention(config, config.indexer_full[at], layer);
    if (!config.is_sparse[at]) {
      layer.gate_up("mlp.gate_up", config.intermediate_size, config.hidden_size);
      layer.matrix("mlp.down", TensorKind::projection, config.hidden_size,
                   config.intermediate_size);
      continue;
    }
    list_sparse(config, layer);
    for (int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
      layer
          .add(fmt::format("experts.{}", expert), TensorLayout::expert, TensorKind::routed_expert,
               config.moe_intermediate_size, config.hidden_size)
          .expert = expert;
    }
  }
  return out;
}

int64_t stored_bytes(TensorLayout layout, BlockFormat format, int64_t rows, int64_t columns) {
  switch (layout) {
    case TensorLayout::matrix:
      return matrix_bytes(format, rows, columns);
    case TensorLayout::gate_up:
      return gate_up_bytes(format, rows, columns);
    case TensorLayout::embedding:
      return rows * embedding_row_bytes(format, columns);
    case TensorLayout::vector:
      return columns * 4;
    case TensorLayout::expert:
      return expert_bytes(format, rows, columns);
  }
  return 0;
}

bool layout_allows(TensorLayout layout, TensorKind kind, BlockFormat format) {
  if (layout == TensorLayout::vector) return format == BlockFormat::f32;
  if (kind == TensorKind::router) return !is_quantised(format);
  if (layout == TensorLayout::embedding) return !is_quantised(format) || format == BlockFormat::q8;
  return true;
}

const char* layout_name(TensorLayout layout) {
  switch (layout) {
    case TensorLayout::matrix:
      return "matrix";
    case TensorLayout::gate_up:
      return "gate_up";
    case TensorLayout::embedding:
      return "embedding";
    case TensorLayout::vector:
      return "vector";
    case TensorLayout::expert:
      return "expert";
  }
  return "?";
}

const char* format_name(BlockFormat format) {
  switch (format) {
    case BlockFormat::f32:
      return "f32";
    case BlockFormat::f16:
      return "f16";
    case BlockFormat::bf16:
      return "bf16";
    case BlockFormat::q8:
      return "q8";
    case BlockFormat::nl5:
      return "nl5";
    case BlockFormat::nl4:
      return "nl4";
  }
  return "?";
}

}  // namespace glmd
