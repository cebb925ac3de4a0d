#include "model/layers/sparse_indexer.h"

#include <algorithm>
#include <cmath>

namespace glmd {
namespace {

// Scores all visible keys of the rows that see more than index_topk, and keeps the best. Few rows
// share their keys out over the team; many rows are dealt out in turns.
class Selector {
 public:
  Selector(const Compute& compute, const CheckpointConfig& config, int64_t layer,
           std::span<const PassRow> rows, Workspace& workspace)
      : compute_(compute), config_(config), layer_(layer), rows_(rows), workspace_(workspace) {
    int64_t tokens_max = 0;  // of any sequence, however long it is now
    for (const PassRow& row : rows) tokens_max = std::max(tokens_max, row.sequence->tokens_max());
    scores_stride_ = padded_lanes(tokens_max);
    top_stride_ = top_scratch_ints(tokens_max);
    scores_ = grown_aligned(workspace.index_scores, threads_ * scores_stride_);
    scratch_ = grown_aligned(workspace.index_scratch, threads_ * scratch_floats_);
    top_scratch_ = grown_aligned(workspace.top_scratch, threads_ * top_stride_);
  }

  void run() {
    if (static_cast<int64_t>(rows_.size()) >= threads_) {
      run_rows();
    } else {
      run_keys();
    }
  }

 private:
  bool is_sparse(int64_t row) const { return workspace_.selected_count[row] != 0; }
  int64_t visible(int64_t row) const { return rows_[row].position + 1; }

  void score(int64_t row, int64_t thread, float* scores, int64_t begin, int64_t end) {
    compute_.kernels.index_scores(workspace_.index_queries.data() + row * heads_ * width_,
                                  workspace_.index_weights.data() + row * heads_, heads_,
                                  rows_[row].sequence->index_keys(layer_),
                                  1.0F / std::sqrt(static_cast<float>(width_)),
                                  scratch_ + thread * scratch_floats_, scores, begin, end);
  }

  void select(int64_t row, int64_t thread, const float* scores) {
    compute_.kernels.select_top(scores, visible(row), config_.index_topk,
                                top_scratch_ + thread * top_stride_,
                                workspace_.selected.data() + row * config_.index_topk);
  }

  void run_rows() {
    compute_.team.run(threads_, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t thread = begin; thread < end; ++thread) {
        for (int64_t row = thread; row < static_cast<int64_t>(rows_.size()); row += threads_) {
          if (!is_sparse(row)) continue;
          float* scores = scores_ + thread * scores_stride_;
          score(row, thread, scores, 0, visible(row));
          select(row, thread, scores);
        }
      }
    });
  }

  void run_keys() {
    const auto row_count = static_cast<int64_t>(rows_.size());
    for (int64_t row = 0; row < row_count; ++row) {
      if (!is_sparse(row)) continue;
      float* scores = scores_ + row * scores_stride_;
      compute_.team.run(
          visible(row), cache_block_tokens,
          [&](int64_t begin, int64_t end, int thread) { score(row, thread, scores, begin, end); });
    }
    compute_.team.run(row_count, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t row = begin; row < end; ++row) {
        if (is_sparse(row)) select(row, thread, scores_ + row * scores_stride_);
      }
    });
  }

  const Compute& compute_;
  const CheckpointConfig& config_;
  const int64_t layer_;
  const std::span<const PassRow> rows_;
  Workspace& workspace_;
  const int64_t threads_ = compute_.team.thread_count();
  const int64_t heads_ = config_.index_n_heads, width_ = config_.index_head_dim;
  const int64_t scratch_floats_ = index_scratch_floats(heads_, width_);
  int64_t scores_stride_ = 0, top_stride_ = 0;
  float *scores_ = nullptr, *scratch_ = nullptr;  // [threads or, if fewer, rows], [threads]
  int32_t* top_scratch_ = nullptr;                // [threads]
};

}  // namespace

void run_indexer(const Compute& compute, const CheckpointConfig& config,
                 const IndexerWeights& weights, int64_t layer, const CacheLayout& layout,
                 std::span<const PassRow> rows, Workspace& workspace) {
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t width = config.index_head_dim, heads = config.index_n_heads;
  const int64_t pairs = config.qk_rope_head_dim / 2;

  float* keys = grown(workspace.index_key, row_count * width);
  multiply(compute, weights.k, workspace.normed_rows, keys, width);
  compute.team.run(row_count, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* key = keys + row * width;
      compute.kernels.layer_norm(key, weights.k_norm, weights.k_norm_bias, width, 1e-6F, key);
      compute.kernels.rotate(key, &workspace.cos[row * pairs], &workspace.sin[row * pairs], pairs);
      store_row(compute.kernels, layout.index_key, key,
                rows[row].sequence->index_key_at(layer, rows[row].position));
    }
  });

  // Up to index_topk visible tokens the selection is everything.
  grown(workspace.selected_count, row_count);
  grown(workspace.selected, row_count * config.index_topk);
  bool is_sparse = false;
  for (int64_t row = 0; row < row_count; ++row) {
    const bool row_is_sparse = rows[row].position + 1 > config.index_topk;
    workspace.selected_count[row] = row_is_sparse ? config.index_topk : 0;
    is_sparse = is_sparse || row_is_sparse;
  }
  // The buffers of a selection are there before it is one: growing sequences take no memory later.
  float* queries = grown(workspace.index_queries, row_count * heads * width);
  float* head_weights = grown(workspace.index_weights, row_count * heads);
  Selector selector(compute, config, layer, rows, workspace);
  if (!is_sparse) return;

  multiply(compute, weights.q_b, workspace.rank_rows, queries, heads * width);
  multiply(compute, weights.head_weights, workspace.normed_rows, head_weights, heads);
  const float head_scale = 1.0F / std::sqrt(static_cast<float>(heads));
  compute.team.run(row_count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        compute.kernels.rotate(queries + (row * heads + head) * width, &workspace.cos[row * pairs],
                               &workspace.sin[row * pairs], pairs);
        head_weights[row * heads + head] *= head_scale;
      }
    }
  });

  selector.run();
}

}  // namespace glmd
