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
  const int64_t latent = config.kv_lora_rank, width = layout.key.width;
  const int64_t pairs = config.qk_rope_head_dim / 2;
  const auto row_count = static_cast<int64_t>(rows.size());
  compute.team.run(row_count, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* key = workspace.key_raw.data() + row * width;
      const int64_t angle = row * pairs;
      compute.kernels.rms_norm(key, weights.kv_a_norm, latent, latent_norm_eps, key);
      compute.kernels.rotate(key + latent, &workspace.cos[angle], &workspace.sin[angle], pairs);
      store_row(compute.kernels, layout.key, key,
                rows[row].sequence->key_at(layer, rows[row].position));
    }
  });
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
  compute.team.run(row_count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t pair = begin * heads; pair < end * heads; ++pair) {
      float* target = absorbed + pair * absorbed_width + latent;
      std::memcpy(target, queries + pair * head_width + nope,
                  static_cast<size_t>(rope) * sizeof(float));
      const int64_t angle = pair / heads * (rope / 2);
      compute.kernels.rotate(target, &workspace.cos[angle], &workspace.sin[angle], rope / 2);
    }
  });
}

// Attention over latents for all rows, cut into units of work in one of two ways that give the same
// bits. Many rows: a unit is a row with a part of its heads, dealt out in turns, since later rows
// of a prompt see more keys. Few rows: spans of keys are units too, and are merged at the end. A
// single row whose heads make equal parts for all threads is cut as many rows are: no thread
// transposes queries of another or waits for its spans.
class RowAttention {
 public:
  RowAttention(const Compute& compute, const CheckpointConfig& config, int64_t layer,
               std::span<const PassRow> rows, Workspace& workspace)
      : compute_(compute),
        config_(config),
        layer_(layer),
        rows_(rows),
        workspace_(workspace),
        row_count_(static_cast<int64_t>(rows.size())),
        threads_(compute.team.thread_count()) {
    grown(workspace.latents, row_count_ * heads_ * latent_);
    scratch_ = grown_aligned(workspace.attention_scratch, threads_ * scratch_floats_);
  }

  void run() {
    const int64_t groups = std::max<int64_t>(1, heads_ / heads_wanted);
    if (row_count_ >= threads_ || (row_count_ == 1 && groups % threads_ == 0)) {
      run_rows(groups);
    } else {
      run_spans();
    }
  }

 private:
  // Converting a key for fewer heads would cost too much beside using it.
  static constexpr int64_t heads_wanted = 32;

  // Heads of one of `groups` parts, whole vectors of 8.
  struct Heads {
    int64_t begin, end;
  };
  Heads heads_of(int64_t group, int64_t groups) const {
    const int64_t eights = (heads_ + 7) / 8;
    return {std::min(heads_, eights * group / groups * 8),
            std::min(heads_, eights * (group + 1) / groups * 8)};
  }

  int64_t key_count(int64_t row) const {
    const int64_t selected = workspace_.selected_count[row];
    return selected == 0 ? rows_[row].position + 1 : selected;
  }

  void attend(int64_t row, int64_t span_begin, int64_t span_end, Heads heads, int64_t thread,
              const AttentionState& state) {
    const AttentionInput input{
        .queries = workspace_.absorbed.data() + row * heads_ * (latent_ + rope_),
        .heads = heads_,
        .latent = latent_,
        .rope = rope_,
        .cache = rows_[row].sequence->keys(layer_),
        .positions = workspace_.selected_count[row] == 0
                         ? nullptr
                         : workspace_.selected.data() + row * config_.index_topk,
        .key_count = key_count(row),
        .scale = 1.0F / std::sqrt(static_cast<float>(config_.qk_nope_head_dim + rope_))};
    compute_.kernels.attend_spans(input, span_begin, span_end, heads.begin, heads.end,
                                  scratch_ + thread * scratch_floats_, state);
  }

  float* row_latents(int64_t row) { return workspace_.latents.data() + row * heads_ * latent_; }

  void run_rows(int64_t groups) {
    float* extremes = grown(workspace_.attention_parts, row_count_ * heads_ * 2);
    compute_.team.run(threads_, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t thread = begin; thread < end; ++thread) {
        for (int64_t unit = thread; unit < row_count_ * groups; unit += threads_) {
          const int64_t row = unit / groups;
          const Heads heads = heads_of(unit % groups, groups);
          const AttentionState state{.max = extremes + row * heads_ * 2,
                                     .sum = extremes + (row * 2 + 1) * heads_,
                                     .out = row_latents(row)};
          attend(row, 0, attention_span_count(key_count(row)), heads, thread, state);
          compute_.kernels.finish_attention(&state, 1, latent_, heads.begin, heads.end, state.out);
        }
      }
    });
  }

  void run_spans() {
    int64_t spans = 0, spans_max = 0;  // most of any row: now, and as its sequence grows
    for (int64_t row = 0; row < row_count_; ++row) {
      const int64_t keys_max = std::min(rows_[row].sequence->tokens_max(), config_.index_topk);
      spans = std::max(spans, attention_span_count(key_count(row)));
      spans_max = std::max(spans_max, attention_span_count(keys_max));
    }
    int64_t groups = 1;
    while (row_count_ * spans * groups < threads_ && groups * 8 < heads_) ++groups;
    const int64_t part_floats = heads_ * (latent_ + 2);
    float* parts = grown(workspace_.attention_parts, row_count_ * spans_max * part_floats);
    AttentionState* states = grown(workspace_.attention_states, row_count_ * spans_max);
    for (int64_t i = 0; i < row_count_ * spans; ++i) {
      float* part = parts + i * part_floats;
      states[i] = {.max = part, .sum = part + heads_, .out = part + 2 * heads_};
    }
    compute_.team.run(row_count_ * spans * groups, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t span = unit / groups % spans, row = unit / groups / spans;
        if (span >= attention_span_count(key_count(row))) continue;
        attend(row, span, span + 1, heads_of(unit % groups, groups), thread,
               states[row * spans + span]);
      }
    });
    compute_.team.run(row_count_ * heads_, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const int64_t row = pair / heads_, head = pair % heads_;
        compute_.kernels.finish_attention(states + row * spans,
                                          attention_span_count(key_count(row)), latent_, head,
                                          head + 1, row_latents(row));
      }
    });
  }

  const Compute& compute_;
  const CheckpointConfig& config_;
  const int64_t layer_;
  const std::span<const PassRow> rows_;
  Workspace& workspace_;
  const int64_t row_count_, threads_;
  const int64_t heads_ = config_.heads, latent_ = config_.kv_lora_rank;
  const int64_t rope_ = config_.qk_rope_head_dim;
  const int64_t scratch_floats_ = attention_scratch_floats(heads_, latent_, rope_);
  float* scratch_ = nullptr;  // [threads][scratch_floats_]
};

}  // namespace

void run_attention(const Compute& compute, const CheckpointConfig& config, float latent_norm_eps,
                   const LayerWeights& weights, int64_t layer, const CacheLayout& layout,
                   std::span<const PassRow> rows, Workspace& workspace) {
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t heads = config.heads, latent = config.kv_lora_rank, v = config.v_head_dim;

  float* rank = grown(workspace.query_rank, row_count * config.q_lora_rank);
  float* keys = grown(workspace.key_raw, row_count * layout.key.width);
  multiply(compute, weights.q_a, workspace.normed_rows, rank, config.q_lora_rank);
  multiply(compute, weights.kv_a, workspace.normed_rows, keys, layout.key.width);
  mark(workspace.times, StepPart::projections);
  compute.team.run(row_count, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = rank + row * config.q_lora_rank;
      compute.kernels.rms_norm(values, weights.q_a_norm, config.q_lora_rank, latent_norm_eps,
                               values);
    }
  });
  workspace.rank_rows.set(rank, config.q_lora_rank, row_count, config.q_lora_rank);
  store_keys(compute, config, latent_norm_eps, weights, layer, layout, rows, workspace);
  mark(workspace.times, StepPart::rest);

  if (weights.indexer) {
    run_indexer(compute, config, *weights.indexer, layer, layout, rows, workspace);
    mark(workspace.times, StepPart::indexer);
  }
  make_queries(compute, config, weights, row_count, workspace);
  mark(workspace.times, StepPart::projections);
  RowAttention(compute, config, layer, rows, workspace).run();
  mark(workspace.times, StepPart::attention);

  float* mixed = grown(workspace.mixed, row_count * heads * v);
  multiply_heads(compute, weights.v_b, heads, workspace.latents.data(), {heads * latent, latent},
                 mixed, {heads * v, v}, row_count, workspace.heads);
  workspace.mixed_rows.set(mixed, heads * v, row_count, heads * v);
  float* update = grown(workspace.update, row_count * config.hidden_size);
  multiply(compute, weights.o, workspace.mixed_rows, update, config.hidden_size);
  mark(workspace.times, StepPart::projections);
}

}  // namespace glmd
