#include "model/layers/mla_attention.h"

#include <cmath>
#include <cstring>

#include "model/layers/sparse_indexer.h"

namespace glmd {
namespace {

// Normalises the latent, rotates the shared key, and writes both to the cache.
void store_keys(const Compute& compute, const CheckpointConfig& config, float latent_norm_eps,
                const LayerWeights& weights, int64_t layer, const CacheLayout& layout,
                std::span<const PassRow> rows, Workspace& workspace) {
  const int64_t latent = config.kv_lora_rank, width = layout.key_width;
  const int64_t pairs = config.qk_rope_head_dim / 2;
  for (size_t row = 0; row < rows.size(); ++row) {
    float* key = workspace.key_raw.data() + static_cast<int64_t>(row) * width;
    const int64_t angle = static_cast<int64_t>(row) * pairs;
    compute.kernels.rms_norm(key, weights.kv_a_norm, latent, latent_norm_eps, key);
    compute.kernels.rotate(key + latent, &workspace.cos[angle], &workspace.sin[angle], pairs);
    uint8_t* cached = rows[row].sequence->key_at(layer, rows[row].position);
    if (layout.element_bytes == 4) {
      std::memcpy(cached, key, static_cast<size_t>(width) * sizeof(float));
    } else {
      compute.kernels.to_f16(key, width, reinterpret_cast<uint16_t*>(cached));
    }
  }
}

// Queries of all heads, the nope part moved into the latent space, the rope part rotated.
void make_queries(const Compute& compute, const CheckpointConfig& config,
                  const LayerWeights& weights, int64_t row_count, Workspace& workspace) {
  const int64_t heads = config.heads, nope = config.qk_nope_head_dim;
  const int64_t rope = config.qk_rope_head_dim, latent = config.kv_lora_rank;
  const int64_t head_width = nope + rope, absorbed_width = latent + rope;
  float* queries = grown(workspace.queries, row_count * heads * head_width);
  float* absorbed = grown(workspace.absorbed, row_count * heads * absorbed_width);
  multiply(compute, weights.q_b, workspace.rank_rows, queries, heads * head_width);
  multiply_heads(compute, weights.k_b, heads, queries, {heads * head_width, head_width}, absorbed,
                 {heads * absorbed_width, absorbed_width}, row_count, workspace.heads);
  for (int64_t row = 0; row < row_count; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      float* target = absorbed + (row * heads + head) * absorbed_width + latent;
      std::memcpy(target, queries + (row * heads + head) * head_width + nope,
                  static_cast<size_t>(rope) * sizeof(float));
      compute.kernels.rotate(target, &workspace.cos[row * (rope / 2)],
                             &workspace.sin[row * (rope / 2)], rope / 2);
    }
  }
}

void attend_rows(const Compute& compute, const CheckpointConfig& config, int64_t layer,
                 const CacheLayout& layout, std::span<const PassRow> rows, Workspace& workspace) {
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t heads = config.heads, latent = config.kv_lora_rank;
  const int64_t rope = config.qk_rope_head_dim;
  float* latents = grown(workspace.latents, row_count * heads * latent);
  const auto thread_count = static_cast<size_t>(compute.team.thread_count());
  workspace.blocks.resize(std::max(workspace.blocks.size(), thread_count));
  const float scale = 1.0F / std::sqrt(static_cast<float>(config.qk_nope_head_dim + rope));

  // (row, head) pairs in row-major order: decode splits the heads, prefill the rows.
  compute.team.run(row_count * heads, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t pair = begin; pair < end;) {
      const int64_t row = pair / heads, head = pair % heads;
      const int64_t head_end = std::min(heads, head + (end - pair));
      const int64_t selected = workspace.selected_count[row];
      rows[row].sequence->key_blocks(layer, workspace.blocks[thread]);
      const AttentionInput input{
          .queries = workspace.absorbed.data() + row * heads * (latent + rope),
          .heads = heads,
          .latent = latent,
          .rope = rope,
          .cache = {workspace.blocks[thread].data(), layout.key_width, layout.element_bytes == 4},
          .positions =
              selected == 0 ? nullptr : workspace.selected.data() + row * config.index_topk,
          .key_count = selected == 0 ? rows[row].position + 1 : selected,
          .scale = scale};
      compute.kernels.attend(input, latents + row * heads * latent, head, head_end);
      pair += head_end - head;
    }
  });
}

}  // namespace

void run_attention(const Compute& compute, const CheckpointConfig& config, float latent_norm_eps,
                   const LayerWeights& weights, int64_t layer, const CacheLayout& layout,
                   std::span<const PassRow> rows, Workspace& workspace) {
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t heads = config.heads, latent = config.kv_lora_rank, v = config.v_head_dim;

  float* rank = grown(workspace.query_rank, row_count * config.q_lora_rank);
  float* keys = grown(workspace.key_raw, row_count * layout.key_width);
  multiply(compute, weights.q_a, workspace.normed_rows, rank, config.q_lora_rank);
  multiply(compute, weights.kv_a, workspace.normed_rows, keys, layout.key_width);
  for (int64_t row = 0; row < row_count; ++row) {
    float* values = rank + row * config.q_lora_rank;
    compute.kernels.rms_norm(values, weights.q_a_norm, config.q_lora_rank, latent_norm_eps, values);
  }
  workspace.rank_rows.set(rank, config.q_lora_rank, row_count, config.q_lora_rank);
  store_keys(compute, config, latent_norm_eps, weights, layer, layout, rows, workspace);

  if (weights.indexer) {
    run_indexer(compute, config, *weights.indexer, layer, layout, rows, workspace);
  }
  make_queries(compute, config, weights, row_count, workspace);
  attend_rows(compute, config, layer, layout, rows, workspace);

  float* mixed = grown(workspace.mixed, row_count * heads * v);
  multiply_heads(compute, weights.v_b, heads, workspace.latents.data(), {heads * latent, latent},
                 mixed, {heads * v, v}, row_count, workspace.heads);
  workspace.mixed_rows.set(mixed, heads * v, row_count, heads * v);
  float* update = grown(workspace.update, row_count * config.hidden_size);
  multiply(compute, weights.o, workspace.mixed_rows, update, config.hidden_size);
}

}  // namespace glmd
