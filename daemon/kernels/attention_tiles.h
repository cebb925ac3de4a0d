// Attention and index scores as products of matrices, for any vector of 16 lanes: avx2/ and avx512/
// bring theirs as `Lanes`, with the shapes that fill their registers.
//
// Heads are lanes while scores are made: queries lie transposed, [width][heads], a key's element is
// broadcast to all of them, and softmax needs no step across lanes. Latents are lanes while they
// are added up. A tile of 64 keys is converted to f32 once and then used by every head.
// Functions are static so that nothing compiled for one instruction set is picked for another.
#pragma once

#include <string.h>

#include <type_traits>

#include "kernels/kernel_table.h"

namespace glmd {

constexpr int64_t lane_count = 16;
constexpr int64_t index_tile_keys = 16;

// call(std::integral_constant<int, count>), for 1 <= count <= most.
template <int most, class Call>
static inline void with_constant(int64_t count, const Call& call) {
  if constexpr (most > 1) {
    if (count < most) return with_constant<most - 1>(count, call);
  }
  call(std::integral_constant<int, most>{});
}

static inline int64_t smaller_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Not inlined, as add_block: sums must stay in registers, which a larger function has other uses
// for. scores[key][head] = dot * scale, of `keys` keys and 16 * `vectors` heads.
template <class Lanes, int vectors, int keys>
[[gnu::noinline]] static void dot_block(const float* queries, int64_t query_stride,
                                        const float* key_rows, int64_t key_stride, int64_t width,
                                        float scale, float* scores, int64_t score_stride) {
  Lanes sums[keys][vectors];
  for (int k = 0; k < keys; ++k) {
    for (int v = 0; v < vectors; ++v) sums[k][v] = Lanes::all(0.0f);
  }
  for (int64_t i = 0; i < width; ++i) {
    Lanes query[vectors];
    for (int v = 0; v < vectors; ++v)
      query[v] = Lanes::load(queries + i * query_stride + v * lane_count);
    for (int k = 0; k < keys; ++k) {
      const Lanes key = Lanes::all(key_rows[k * key_stride + i]);
      for (int v = 0; v < vectors; ++v) sums[k][v] = Lanes::fma(key, query[v], sums[k][v]);
    }
  }
  const Lanes scales = Lanes::all(scale);
  for (int k = 0; k < keys; ++k) {
    for (int v = 0; v < vectors; ++v)
      Lanes::store(scores + k * score_stride + v * lane_count, sums[k][v] * scales);
  }
}

// Scores of up to Lanes::dot_keys keys with all heads; queries and scores are padded to whole
// vectors.
template <class Lanes>
static inline void dot_keys(const float* queries, int64_t head_lanes, const float* key_rows,
                            int64_t key_stride, int64_t key_count, int64_t width, float scale,
                            float* scores) {
  for (int64_t h = 0; h < head_lanes; h += Lanes::dot_vectors * lane_count) {
    const int64_t vectors = smaller_of(Lanes::dot_vectors, (head_lanes - h) / lane_count);
    with_constant<Lanes::dot_keys>(key_count, [&](auto key_constant) {
      with_constant<Lanes::dot_vectors>(vectors, [&](auto vector_constant) {
        dot_block<Lanes, vector_constant, key_constant>(
            queries + h, head_lanes, key_rows, key_stride, width, scale, scores + h, head_lanes);
      });
    });
  }
}

// out[head][column]: what was there times `rescale`, then the keys in order. The last vector has
// `last_lanes` columns.
template <class Lanes, int heads, int vectors>
[[gnu::noinline]] static void add_block(const float* weights, int64_t weight_stride,
                                        const float* values, int64_t value_stride,
                                        int64_t key_count, const float* rescale, int64_t last_lanes,
                                        float* out, int64_t out_stride) {
  constexpr int last = vectors - 1;
  Lanes sums[heads][vectors];
  for (int h = 0; h < heads; ++h) {
    const float* row = out + h * out_stride;
    const Lanes factor = Lanes::all(rescale[h]);
    for (int v = 0; v < last; ++v) sums[h][v] = Lanes::load(row + v * lane_count) * factor;
    sums[h][last] = Lanes::load(row + last * lane_count, last_lanes) * factor;
  }
  for (int64_t k = 0; k < key_count; ++k) {
    Lanes value[vectors];
    for (int v = 0; v < vectors; ++v)
      value[v] = Lanes::load(values + k * value_stride + v * lane_count);
    for (int h = 0; h < heads; ++h) {
      const Lanes weight = Lanes::all(weights[k * weight_stride + h]);
      for (int v = 0; v < vectors; ++v) sums[h][v] = Lanes::fma(weight, value[v], sums[h][v]);
    }
  }
  for (int h = 0; h < heads; ++h) {
    float* row = out + h * out_stride;
    for (int v = 0; v < last; ++v) Lanes::store(row + v * lane_count, sums[h][v]);
    Lanes::store(row + last * lane_count, sums[h][last], last_lanes);
  }
}

// A panel of columns stays near while all heads use it. Heads are cut evenly: a block of few has
// too few sums to keep the multipliers busy.
template <class Lanes>
static inline void add_tile(const float* weights, int64_t head_lanes, const float* values,
                            int64_t value_stride, int64_t key_count, const float* rescale,
                            int64_t heads, int64_t latent, float* out) {
  constexpr int64_t panel = Lanes::add_vectors * lane_count;
  const int64_t blocks = (heads + Lanes::add_heads - 1) / Lanes::add_heads;
  for (int64_t column = 0; column < latent; column += panel) {
    const int64_t columns = smaller_of(panel, latent - column);
    const int64_t vectors = (columns + lane_count - 1) / lane_count;
    const int64_t last_lanes = columns - (vectors - 1) * lane_count;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t h = heads * block / blocks, now = heads * (block + 1) / blocks - h;
      with_constant<Lanes::add_heads>(now, [&](auto head_constant) {
        with_constant<Lanes::add_vectors>(vectors, [&](auto vector_constant) {
          add_block<Lanes, head_constant, vector_constant>(
              weights + h, head_lanes, values + column, value_stride, key_count, rescale + h,
              last_lanes, out + h * latent + column, latent);
        });
      });
    }
  }
}

// Scores become weights; max and sum move on, rescale says by how much.
template <class Lanes>
static inline void weigh_tile(float* scores, int64_t head_lanes, int64_t key_count, float* max,
                              float* sum, float* rescale) {
  for (int64_t h = 0; h < head_lanes; h += lane_count) {
    const Lanes old_max = Lanes::load(max + h);
    Lanes new_max = old_max;
    for (int64_t k = 0; k < key_count; ++k)
      new_max = Lanes::larger(Lanes::load(scores + k * head_lanes + h), new_max);
    const Lanes factor = Lanes::exp(old_max - new_max);
    Lanes total = Lanes::load(sum + h) * factor;
    for (int64_t k = 0; k < key_count; ++k) {
      float* place = scores + k * head_lanes + h;
      const Lanes weight = Lanes::exp(Lanes::load(place) - new_max);
      Lanes::store(place, weight);
      total = total + weight;
    }
    Lanes::store(max + h, new_max);
    Lanes::store(sum + h, total);
    Lanes::store(rescale + h, factor);
  }
}

// The place of a cached token.
static inline const uint8_t* cached_token(const CacheView& cache, int64_t position) {
  return cache.blocks[position / cache_block_tokens] + cache.offset +
         position % cache_block_tokens * cache.row.bytes();
}

// One token in f32. Codes are padded to whole groups, so they may be read and written as vectors.
template <class Lanes>
static inline void read_token(const uint8_t* from, const CacheRow& row, float* to) {
  const auto* codes = reinterpret_cast<const int8_t*>(from);
  const auto* scales = reinterpret_cast<const float*>(from + padded_columns(row.coded));
  for (int64_t i = 0; i < row.coded; i += lane_count)
    Lanes::store(to + i, Lanes::load(codes + i) * Lanes::all(scales[i / group_columns]));

  const auto* floats = reinterpret_cast<const float*>(from + row.coded_bytes());
  const auto* halves = reinterpret_cast<const uint16_t*>(from + row.coded_bytes());
  const int64_t n = row.width - row.coded;
  to += row.coded;
  int64_t i = 0;
  for (; i + lane_count <= n; i += lane_count)
    Lanes::store(to + i, row.is_f32 ? Lanes::load(floats + i) : Lanes::load(halves + i));
  if (i == n) return;
  Lanes::store(to + i, row.is_f32 ? Lanes::load(floats + i, n - i) : Lanes::load(halves + i, n - i),
               n - i);
}

// Scratch of attend_spans, cut into its parts.
struct AttentionScratch {
  AttentionScratch(float* scratch, int64_t heads, int64_t latent, int64_t rope)
      : head_lanes(padded_lanes(heads)),
        key_stride(padded_lanes(latent + rope)),
        queries(scratch),
        keys(queries + head_lanes * key_stride),
        scores(keys + attention_tile_keys * key_stride),
        max(scores + attention_tile_keys * head_lanes),
        sum(max + head_lanes),
        rescale(sum + head_lanes),
        out(rescale + head_lanes) {}
  int64_t head_lanes, key_stride;
  float* queries;  // [latent + rope][head_lanes]
  float* keys;     // [tile][key_stride]
  float* scores;   // [tile][head_lanes]
  float* max;      // [head_lanes], likewise sum and rescale
  float* sum;
  float* rescale;
  float* out;  // [heads][latent]
};

// max and sum of the span into the scratch, its latents into `out`.
template <class Lanes>
static inline void attend_span(const AttentionInput& input, int64_t span, int64_t heads,
                               const AttentionScratch& scratch, float* out) {
  const int64_t width = input.latent + input.rope, head_lanes = scratch.head_lanes;
  const int64_t first = span * attention_span_keys;
  const int64_t last = smaller_of(input.key_count, first + attention_span_keys);
  const auto position_of = [&](int64_t rank) {
    return input.positions == nullptr ? rank : input.positions[rank];
  };
  for (int64_t h = 0; h < head_lanes; ++h) scratch.max[h] = -__builtin_inff();
  memset(scratch.sum, 0, static_cast<size_t>(head_lanes) * sizeof(float));
  memset(out, 0, static_cast<size_t>(heads * input.latent) * sizeof(float));

  for (int64_t tile = first; tile < last; tile += attention_tile_keys) {
    const int64_t n = smaller_of(attention_tile_keys, last - tile);
    for (int64_t k = 0; k < n; k += Lanes::dot_keys) {
      const int64_t now = smaller_of(Lanes::dot_keys, n - k);
      float* keys = scratch.keys + k * scratch.key_stride;
      for (int64_t i = 0; i < now; ++i) {
        read_token<Lanes>(cached_token(input.cache, position_of(tile + k + i)), input.cache.row,
                          keys + i * scratch.key_stride);
      }
      dot_keys<Lanes>(scratch.queries, head_lanes, keys, scratch.key_stride, now, width,
                      input.scale, scratch.scores + k * head_lanes);
    }
    weigh_tile<Lanes>(scratch.scores, head_lanes, n, scratch.max, scratch.sum, scratch.rescale);
    add_tile<Lanes>(scratch.scores, head_lanes, scratch.keys, scratch.key_stride, n,
                    scratch.rescale, heads, input.latent, out);
  }
}

// Merges the spans that follow into one head.
template <class Lanes>
static inline void merge_head(float& max, float& sum, float* out, float next_max, float next_sum,
                              const float* next_out, int64_t latent) {
  const float new_max = next_max > max ? next_max : max;
  const float a = Lanes::exp(max - new_max), b = Lanes::exp(next_max - new_max);
  max = new_max;
  sum = __builtin_fmaf(sum, a, next_sum * b);
  const Lanes scale = Lanes::all(a), next_scale = Lanes::all(b);
  for (int64_t i = 0; i < latent; i += lane_count) {
    const int64_t n = smaller_of(lane_count, latent - i);
    const Lanes merged =
        Lanes::fma(Lanes::load(next_out + i, n), next_scale, Lanes::load(out + i, n) * scale);
    Lanes::store(out + i, merged, n);
  }
}

template <class Lanes>
static inline void attend_spans_of(const AttentionInput& input, int64_t span_begin,
                                   int64_t span_end, int64_t head_begin, int64_t head_end,
                                   float* scratch_floats, const AttentionState& state) {
  const int64_t heads = head_end - head_begin, latent = input.latent;
  const int64_t width = latent + input.rope;
  const AttentionScratch scratch(scratch_floats, heads, latent, input.rope);
  Lanes::transpose(input.queries + head_begin * width, heads, width, scratch.queries);
  float* max = state.max + head_begin;
  float* sum = state.sum + head_begin;
  float* out = state.out + head_begin * latent;
  for (int64_t span = span_begin; span < span_end; ++span) {
    const bool is_first = span == span_begin;
    attend_span<Lanes>(input, span, heads, scratch, is_first ? out : scratch.out);
    for (int64_t h = 0; h < heads; ++h) {
      if (is_first) {
        max[h] = scratch.max[h];
        sum[h] = scratch.sum[h];
      } else {
        merge_head<Lanes>(max[h], sum[h], out + h * latent, scratch.max[h], scratch.sum[h],
                          scratch.out + h * latent, latent);
      }
    }
  }
}

template <class Lanes>
static inline void finish_attention_of(const AttentionState* states, int64_t state_count,
                                       int64_t latent, int64_t head_begin, int64_t head_end,
                                       float* out) {
  for (int64_t h = head_begin; h < head_end; ++h) {
    float* head_out = out + h * latent;
    if (state_count == 0) memset(head_out, 0, static_cast<size_t>(latent) * sizeof(float));
    if (state_count == 0) continue;
    float max = states[0].max[h], sum = states[0].sum[h];
    memmove(head_out, states[0].out + h * latent, static_cast<size_t>(latent) * sizeof(float));
    for (int64_t i = 1; i < state_count; ++i) {
      merge_head<Lanes>(max, sum, head_out, states[i].max[h], states[i].sum[h],
                        states[i].out + h * latent, latent);
    }
    const Lanes factor = Lanes::all(1.0f / sum);
    for (int64_t i = 0; i < latent; i += lane_count) {
      const int64_t n = smaller_of(lane_count, latent - i);
      Lanes::store(head_out + i, Lanes::load(head_out + i, n) * factor, n);
    }
  }
}

template <class Lanes>
static inline void index_scores_of(const float* queries, const float* head_weights, int64_t heads,
                                   const CacheView& keys, float scale, float* scratch,
                                   float* scores, int64_t begin, int64_t end) {
  const int64_t width = keys.row.width, key_stride = padded_lanes(width);
  const int64_t head_lanes = padded_lanes(heads);
  float* transposed = scratch;  // [width][head_lanes]
  float* key_rows = transposed + head_lanes * key_stride;
  float* head_scores = key_rows + index_tile_keys * key_stride;  // [tile][head_lanes]
  Lanes::transpose(queries, heads, width, transposed);

  for (int64_t tile = begin; tile < end; tile += index_tile_keys) {
    const int64_t n = smaller_of(index_tile_keys, end - tile);
    for (int64_t k = 0; k < n; ++k) {
      read_token<Lanes>(cached_token(keys, tile + k), keys.row, key_rows + k * key_stride);
    }
    for (int64_t k = 0; k < n; k += Lanes::dot_keys) {
      dot_keys<Lanes>(transposed, head_lanes, key_rows + k * key_stride, key_stride,
                      smaller_of(Lanes::dot_keys, n - k), width, scale,
                      head_scores + k * head_lanes);
    }
    for (int64_t k = 0; k < n; ++k) {
      Lanes sum = Lanes::all(0.0f);
      for (int64_t h = 0; h < heads; h += lane_count) {
        const int64_t now = smaller_of(lane_count, heads - h);
        const Lanes score =
            Lanes::larger(Lanes::all(0.0f), Lanes::load(head_scores + k * head_lanes + h));
        const Lanes added = Lanes::fma(Lanes::load(head_weights + h, now), score, sum);
        sum = now == lane_count ? added : added.first_then(now, sum);
      }
      scores[tile + k] = sum.sum();
    }
  }
}

}  // namespace glmd
