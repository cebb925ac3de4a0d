#include "model/workspace.h"

#include <algorithm>

namespace glmd {
namespace {

constexpr int64_t word_bytes = 4;         // a float, an index
constexpr int64_t rounding_bytes = 4096;  // of a buffer: the heap gives pages
constexpr int64_t buffer_count = 80;

// A row of values as codes, scales and sums.
int64_t coded_bytes(int64_t width) {
  const int64_t padded = padded_columns(width);
  return padded + padded / group_columns * 2 * word_bytes;
}

// A row between the matrices of a feed-forward part: values, then codes.
int64_t middle_bytes(int64_t width) {
  return width * word_bytes + coded_bytes(width);
}

// Of one row, what lists say of it and of its choices. Lists may have room for twice as many.
int64_t list_bytes(int64_t chosen) {
  const int64_t row = sizeof(PassRow) + sizeof(int64_t) + sizeof(double) + sizeof(uint32_t);
  const int64_t choice = 2 * sizeof(Choice) + 2 * word_bytes + sizeof(Guess) + sizeof(uint16_t);
  return 2 * (row + chosen * choice);
}

int64_t values_of_row(const CheckpointConfig& config, bool with_draft) {
  const int64_t key = config.kv_lora_rank + config.qk_rope_head_dim;
  const int64_t stream = (with_draft ? 7 : 5) * config.hidden_size;
  const int64_t head = config.qk_head_dim() + key + config.kv_lora_rank + config.v_head_dim + 2;
  const int64_t index = config.index_head_dim + config.index_topk +
                        config.index_n_heads * (config.index_head_dim + 1);
  const int64_t experts =
      2 * config.n_routed_experts + config.experts_per_token * config.hidden_size;
  return stream + config.qk_rope_head_dim + config.q_lora_rank + key + config.heads * head + index +
         experts;
}

int64_t codes_of_row(const CheckpointConfig& config, bool with_draft) {
  return 2 * coded_bytes(config.hidden_size) + coded_bytes(config.q_lora_rank) +
         coded_bytes(config.heads * config.v_head_dim) +
         (with_draft ? coded_bytes(2 * config.hidden_size) : 0);
}

int64_t bytes_of_thread(const CheckpointConfig& config) {
  const int64_t latent = config.kv_lora_rank, rope = config.qk_rope_head_dim;
  const int64_t spans = attention_span_count(config.index_topk);
  const int64_t words =
      attention_scratch_floats(config.heads, latent, rope) +
      spans * config.heads * (latent + 2) +  // a row's, where rows are fewer than threads
      index_scratch_floats(config.index_n_heads, config.index_head_dim) + top_scratch_ints(64) +
      config.n_routed_experts + config.n_group + result_floats_max;
  const int64_t head_row = coded_bytes(std::max(config.qk_nope_head_dim, latent)) +
                           (std::max(latent, config.v_head_dim) + 2 * tile_rows) * word_bytes;
  return words * word_bytes + spans * static_cast<int64_t>(sizeof(AttentionState)) +
         panel_rows * head_row;
}

}  // namespace

ScratchSizes scratch_sizes(const CheckpointConfig& config, bool experts_are_quantised,
                           bool with_draft) {
  const int64_t expert_width = config.moe_intermediate_size;
  const int64_t widest = std::max(config.intermediate_size,
                                  expert_width * std::max<int64_t>(1, config.n_shared_experts));
  // Of a row in a group of experts.
  const int64_t gathered =
      experts_are_quantised ? coded_bytes(config.hidden_size) : config.hidden_size * word_bytes;
  const int64_t group_row = gathered + static_cast<int64_t>(sizeof(MemberPanel)) + 2 * word_bytes;
  const int64_t expert = sizeof(ExpertWork) + sizeof(ExpertWant) + sizeof(ExpertWork*) +
                         sizeof(ExpertStepScratch::Hit) + sizeof(FeedForward) + word_bytes;
  // A group that is not full yet takes one more expert, at most with all rows.
  return {
      .pass_bytes = group_rows_min * (group_row + middle_bytes(expert_width)) +
                    config.n_routed_experts * expert + buffer_count * rounding_bytes,
      .row_bytes = values_of_row(config, with_draft) * word_bytes +
                   codes_of_row(config, with_draft) + middle_bytes(widest) + group_row +
                   list_bytes(config.experts_per_token),
      .logits_bytes = config.vocabulary * word_bytes + 2 * static_cast<int64_t>(sizeof(int64_t)),
      .thread_bytes = bytes_of_thread(config),
      .thread_token_bytes = 3 * word_bytes};  // a score, and twice its key while selecting
}

}  // namespace glmd
