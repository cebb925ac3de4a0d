// What a checkpoint calls the tensors that a container is made of.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "storage/tensor_inventory.h"

namespace glmd {

// "model.layers.3."
std::string layer_prefix(int64_t layer);
// One name; gate and up; gate, up and down. k_b and v_b are both made of kv_b.
std::vector<std::string> source_names(const InventoryEntry& entry);
// Experts of a layer, fused into one tensor of all gates and ups, and one of all downs.
struct FusedNames {
  std::string gate_up, down;
};
FusedNames fused_names(int64_t layer);

// Block scales of FP8 stand beside their tensor, under either name; both multiply.
inline constexpr std::string_view scale_suffixes[] = {"_scale_inv", "_scale"};

// Measured for activations, or for a cache in FP8. We keep both as they are.
bool is_activation_scale(std::string_view name);

// Every name that a checkpoint of that geometry may have, scales left out.
std::set<std::string, std::less<>> all_source_names(const CheckpointConfig& config);

}  // namespace glmd
