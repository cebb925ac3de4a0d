#include "tools/convert/source_names.h"

#include <algorithm>

#include "platform/check.h"

namespace glmd {
namespace {

// Names of the checkpoint for names of the container, within a layer.
struct NamePair {
  const char* ours;
  const char* theirs;
};
constexpr NamePair global_names[] = {{"embedding", "model.embed_tokens.weight"},
                                     {"head", "lm_head.weight"},
                                     {"norm", "model.norm.weight"}};
constexpr NamePair layer_names[] = {
    {"input_norm", "input_layernorm.weight"},
    {"post_attention_norm", "post_attention_layernorm.weight"},
    {"attention.q_a", "self_attn.q_a_proj.weight"},
    {"attention.q_a_norm", "self_attn.q_a_layernorm.weight"},
    {"attention.q_b", "self_attn.q_b_proj.weight"},
    {"attention.kv_a", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attention.kv_a_norm", "self_attn.kv_a_layernorm.weight"},
    {"attention.k_b", "self_attn.kv_b_proj.weight"},
    {"attention.v_b", "self_attn.kv_b_proj.weight"},
    {"attention.o", "self_attn.o_proj.weight"},
    {"indexer.q_b", "self_attn.indexer.wq_b.weight"},
    {"indexer.k", "self_attn.indexer.wk.weight"},
    {"indexer.k_norm", "self_attn.indexer.k_norm.weight"},
    {"indexer.k_norm_bias", "self_attn.indexer.k_norm.bias"},
    {"indexer.weights", "self_attn.indexer.weights_proj.weight"},
    {"mlp.down", "mlp.down_proj.weight"},
    {"shared.down", "mlp.shared_experts.down_proj.weight"},
    {"router", "mlp.gate.weight"},
    {"router_bias", "mlp.gate.e_score_correction_bias"},
    {"embedding_norm", "enorm.weight"},
    {"hidden_norm", "hnorm.weight"},
    {"eh_proj", "eh_proj.weight"},
    {"head_norm", "shared_head.norm.weight"},
    {"embedding", "embed_tokens.weight"},
    {"head", "shared_head.head.weight"},
};

std::string_view within_layer(const InventoryEntry& entry) {
  std::string_view name = entry.name;
  if (entry.layer < 0) return name;
  name.remove_prefix(name.find('.') + 1);
  return name.substr(name.find('.') + 1);
}

std::vector<std::string> mlp_names(const std::string& prefix) {
  return {prefix + "gate_proj.weight", prefix + "up_proj.weight"};
}

}  // namespace

std::string layer_prefix(int64_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

std::vector<std::string> source_names(const InventoryEntry& entry) {
  const std::string_view ours = within_layer(entry);
  if (entry.layer < 0) {
    for (const NamePair& pair : global_names)
      if (ours == pair.ours) return {pair.theirs};
  }
  const std::string layer = layer_prefix(entry.layer);
  if (entry.layout == TensorLayout::expert) {
    const std::string expert = fmt::format("{}mlp.experts.{}.", layer, entry.expert);
    std::vector<std::string> names = mlp_names(expert);
    names.push_back(expert + "down_proj.weight");
    return names;
  }
  if (ours == "mlp.gate_up") return mlp_names(layer + "mlp.");
  if (ours == "shared.gate_up") return mlp_names(layer + "mlp.shared_experts.");
  for (const NamePair& pair : layer_names)
    if (ours == pair.ours) return {layer + pair.theirs};
  CHECK(!"every name of the inventory has a source");
  return {};
}

FusedNames fused_names(int64_t layer) {
  const std::string experts = layer_prefix(layer) + "mlp.experts.";
  return {experts + "gate_up_proj", experts + "down_proj"};
}

bool is_activation_scale(std::string_view name) {
  constexpr std::string_view suffixes[] = {".input_scale", ".output_scale", ".q_scale", ".k_scale",
                                           ".v_scale"};
  return std::any_of(std::begin(suffixes), std::end(suffixes),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::set<std::string, std::less<>> all_source_names(const CheckpointConfig& config) {
  std::set<std::string, std::less<>> names;
  for (const InventoryEntry& entry : list_tensors(config)) {
    for (std::string& name : source_names(entry)) names.insert(std::move(name));
    if (entry.expert != 0) continue;
    FusedNames fused = fused_names(entry.layer);
    names.insert(std::move(fused.gate_up));
    names.insert(std::move(fused.down));
  }
  return names;
}

}  // namespace glmd
