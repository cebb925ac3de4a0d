// config.json of a `glm_moe_dsa` checkpoint (GLM52 1), read once and validated: whoever holds a
// CheckpointConfig may trust every number in it. What we cannot run is refused here, by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

struct CheckpointConfig {
  int64_t hidden = 0, layers = 0, draft_layers = 0, vocabulary = 0, max_position = 0;
  double rms_norm_eps = 1e-5, rope_theta = 10000;

  int64_t heads = 0, q_lora_rank = 0, kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;

  int64_t intermediate = 0, moe_intermediate = 0;
  int64_t routed_experts = 0, shared_experts = 0, experts_per_token = 0;
  int64_t expert_groups = 1, expert_groups_kept = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;

  int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;
  // Per layer, the draft layer (if any) last:
  std::vector<bool> is_sparse;
  std::vector<bool> indexer_full;

  int64_t fp8_block_rows = 128, fp8_block_columns = 128;
  std::vector<int32_t> eos_ids;

  static Result<CheckpointConfig> parse(const Json& config, std::string_view what);
};

// Adds the eos ids of generation_config.json to those of config.json: both stop a generation.
Result<void> add_eos_ids(const Json& json, std::string_view what, int64_t vocabulary,
                         std::vector<int32_t>& eos_ids);

}  // namespace glmd
