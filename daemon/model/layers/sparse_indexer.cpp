#include "model/layers/sparse_indexer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace glmd {

void select_positions(std::span<const float> scores, int64_t count, std::vector<int32_t>& scratch,
                      int32_t* positions) {
  scratch.resize(scores.size());
  std::iota(scratch.begin(), scratch.end(), 0);
  const auto rank = [&](int32_t position) {
    const float score = scores[position];
    return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
  };
  std::nth_element(scratch.begin(), scratch.begin() + (count - 1), scratch.end(),
                   [&](int32_t a, int32_t b) {
                     const float score_a = rank(a), score_b = rank(b);
                     return score_a > score_b || (score_a == score_b && a < b);
                   });
  std::copy_n(scratch.begin(), count, positions);
  std::sort(positions, positions + count);
}

void run_indexer(const Compute& compute, const CheckpointConfig& config,
                 const IndexerWeights& weights, int64_t layer, const CacheLayout& layout,
                 std::span<const PassRow> rows, Workspace& workspace) {
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t width = config.index_head_dim, heads = config.index_n_heads;
  const int64_t pairs = config.qk_rope_head_dim / 2;

  float* keys = grown(workspace.index_key, row_count * width);
  multiply(compute, weights.k, workspace.normed_rows, keys, width);
  for (int64_t row = 0; row < row_count; ++row) {
    float* key = keys + row * width;
    compute.kernels.layer_norm(key, weights.k_norm, weights.k_norm_bias, width, 1e-6F, key);
    compute.kernels.rotate(key, &workspace.cos[row * pairs], &workspace.sin[row * pairs], pairs);
    uint8_t* cached = rows[row].sequence->index_key_at(layer, rows[row].position);
    if (layout.element_bytes == 4) {
      std::memcpy(cached, key, static_cast<size_t>(width) * sizeof(float));
    } else {
      compute.kernels.to_f16(key, width, reinterpret_cast<uint16_t*>(cached));
    }
  }

  // Up to index_topk visible tokens the selection is everything.
  grown(workspace.selected_count, row_count);
  grown(workspace.selected, row_count * config.index_topk);
  bool is_sparse = false;
  for (int64_t row = 0; row < row_count; ++row) {
    const bool row_is_sparse = rows[row].position + 1 > config.index_topk;
    workspace.selected_count[row] = row_is_sparse ? config.index_topk : 0;
    is_sparse = is_sparse || row_is_sparse;
  }
  if (!is_sparse) return;

  float* queries = grown(workspace.index_queries, row_count * heads * width);
  float* head_weights = grown(workspace.index_weights, row_count * heads);
  multiply(compute, weights.q_b, workspace.rank_rows, queries, heads * width);
  multiply(compute, weights.head_weights, workspace.normed_rows, head_weights, heads);
  const float head_scale = 1.0F / std::sqrt(static_cast<float>(heads));
  for (int64_t row = 0; row < row_count; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      compute.kernels.rotate(queries + (row * heads + head) * width, &workspace.cos[row * pairs],
                             &workspace.sin[row * pairs], pairs);
      head_weights[row * heads + head] *= head_scale;
    }
  }

  const auto thread_count = static_cast<size_t>(compute.team.thread_count());
  workspace.index_scores.resize(std::max(workspace.index_scores.size(), thread_count));
  workspace.index_scratch.resize(std::max(workspace.index_scratch.size(), thread_count));
  workspace.blocks.resize(std::max(workspace.blocks.size(), thread_count));
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));
  const auto score = [&](int64_t row, const std::vector<const uint8_t*>& blocks, float* scores,
                         int64_t begin, int64_t end) {
    const CacheView view{blocks.data(), width, layout.element_bytes == 4};
    compute.kernels.index_scores(queries + row * heads * width, head_weights + row * heads, heads,
                                 view, scale, scores, begin, end);
  };

  if (row_count == 1) {  // decode: the keys are split
    const int64_t visible = rows[0].position + 1;
    rows[0].sequence->index_blocks(layer, workspace.blocks[0]);
    float* scores = grown(workspace.index_scores[0], visible);
    compute.team.run(visible, cache_block_tokens, [&](int64_t begin, int64_t end, int) {
      score(0, workspace.blocks[0], scores, begin, end);
    });
    select_positions({scores, static_cast<size_t>(visible)}, config.index_topk,
                     workspace.index_scratch[0], workspace.selected.data());
    return;
  }
  compute.team.run(row_count, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      if (workspace.selected_count[row] == 0) continue;
      const int64_t visible = rows[row].position + 1;
      rows[row].sequence->index_blocks(layer, workspace.blocks[thread]);
      float* scores = grown(workspace.index_scores[thread], visible);
      score(row, workspace.blocks[thread], scores, 0, visible);
      select_positions({scores, static_cast<size_t>(visible)}, config.index_topk,
                       workspace.index_scratch[thread],
                       workspace.selected.data() + row * config.index_topk);
    }
  });
}

}  // namespace glmd
