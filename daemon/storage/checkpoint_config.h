// What a checkpoint's config.json says, checked: every number is in a range in which products of
// two of them fit int64, every list has its length, and what we cannot run is refused here with its
// name and value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

struct CheckpointConfig {
  std::string family;  // model_type: glm_moe_dsa

  int64_t hidden_size = 0;
  int64_t layers = 0;        // num_hidden_layers; the draft layer, if any, has index `layers`
  int64_t draft_layers = 0;  // num_nextn_predict_layers: 0 or 1
  int64_t vocabulary = 0;
  int64_t max_position = 0;

  int64_t heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // even
  int64_t v_head_dim = 0;

  double rms_norm_eps = 0;
  double rope_theta = 0;

  int64_t intermediate_size = 0;      // of a dense layer
  int64_t moe_intermediate_size = 0;  // of one expert
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t experts_per_token = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 0;

  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;  // at least qk_rope_head_dim
  int64_t index_topk = 0;

  std::vector<bool> is_sparse;  // [layers + draft_layers]: has experts; the draft layer always
  std::vector<bool>
      indexer_full;  // [layers + draft_layers]: owns an indexer; the draft layer always

  std::vector<int32_t> stop_tokens;  // eos_token_id, ascending, each once

  // Blocks of FP8 weights, each with a scale that multiplies it (quantization_config): a scale for
  // each output channel is that of a block of one whole row.
  static constexpr int64_t scale_block_whole = int64_t{1} << 40;
  int64_t scale_block_rows = 128;
  int64_t scale_block_columns = 128;

  // Rows of q_b and columns of k_b per head, and the width of all shared experts as one.
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t shared_intermediate_size() const { return moe_intermediate_size * n_shared_experts; }
  // Of the scales of an FP8 matrix.
  int64_t scale_rows(int64_t rows) const {
    return (rows + scale_block_rows - 1) / scale_block_rows;
  }
  int64_t scale_columns(int64_t columns) const {
    return (columns + scale_block_columns - 1) / scale_block_columns;
  }
  int64_t all_layers() const { return layers + draft_layers; }
  bool is_draft(int64_t layer) const { return layer >= layers; }

  // `what` opens error messages: the path of the file.
  static Result<CheckpointConfig> parse(const Json& config, std::string_view what);

  // Adds the stop tokens of generation_config.json.
  Result<void> add_generation_config(const Json& generation_config, std::string_view what);
};

}  // namespace glmd
