// Absorbed attention over one latent stream, and the scores that choose its keys.
#include <string.h>

#include "kernels/scalar/arithmetic.h"
#include "kernels/scalar/kernels.h"
#include "kernels/select_top.h"

namespace glmd::scalar {
namespace {

constexpr float infinity = std::bit_cast<float>(0x7f800000u);

// One key in f32.
void read_key(const CacheView& cache, int64_t position, float* key) {
  const CacheRow& row = cache.row;
  const uint8_t* token = cache.blocks[position / cache_block_tokens] + cache.offset +
                         position % cache_block_tokens * row.bytes();
  const auto* scales = reinterpret_cast<const float*>(token + padded_columns(row.coded));
  for (int64_t i = 0; i < row.coded; ++i) {
    key[i] = static_cast<float>(static_cast<int8_t>(token[i])) * scales[i / group_columns];
  }
  const uint8_t* others = token + row.coded_bytes();
  for (int64_t i = 0; i < row.width - row.coded; ++i) {
    key[row.coded + i] = row.is_f32 ? load(reinterpret_cast<const float*>(others) + i)
                                    : load(reinterpret_cast<const Half*>(others) + i);
  }
}

// One chain, not 16 lanes.
float chain_dot(const float* key, const float* query, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum = std::fma(key[i], query[i], sum);
  return sum;
}

float larger(float a, float b) {
  return a > b ? a : b;
}

// One head. The key's own place in scratch is as wide as a query.
void attend_span(const AttentionInput& input, const float* query, int64_t first, int64_t last,
                 float* key, float& max, float& sum, float* out) {
  const int64_t width = input.latent + input.rope;
  max = -infinity;
  sum = 0.0f;
  for (int64_t i = 0; i < input.latent; ++i) out[i] = 0.0f;

  for (int64_t tile = first; tile < last; tile += attention_tile_keys) {
    const int64_t n = last - tile < attention_tile_keys ? last - tile : attention_tile_keys;
    const auto read = [&](int64_t k) {
      const int64_t rank = tile + k;
      read_key(input.cache, input.positions == nullptr ? rank : input.positions[rank], key);
    };
    float weights[attention_tile_keys];
    float new_max = max;
    for (int64_t k = 0; k < n; ++k) {
      read(k);
      weights[k] = chain_dot(key, query, width) * input.scale;
      new_max = larger(weights[k], new_max);
    }

    const float rescale = exponential(max - new_max);
    sum *= rescale;
    for (int64_t i = 0; i < input.latent; ++i) out[i] *= rescale;
    for (int64_t k = 0; k < n; ++k) {
      weights[k] = exponential(weights[k] - new_max);
      sum += weights[k];
      read(k);
      for (int64_t i = 0; i < input.latent; ++i) out[i] = std::fma(weights[k], key[i], out[i]);
    }
    max = new_max;
  }
}

// Merges the state of the spans that follow into that of one head.
void merge(float& max, float& sum, float* out, float next_max, float next_sum,
           const float* next_out, int64_t latent) {
  const float new_max = larger(next_max, max);
  const float a = exponential(max - new_max), b = exponential(next_max - new_max);
  max = new_max;
  sum = std::fma(sum, a, next_sum * b);
  for (int64_t i = 0; i < latent; ++i) out[i] = std::fma(next_out[i], b, out[i] * a);
}

// Scores as integers, as select_top.h asks for it.
struct Order16 {
  static void order(const float* scores, int32_t* keys) {
    for (int i = 0; i < 16; ++i) {
      const float score = std::isnan(scores[i]) ? -infinity : scores[i] + 0.0f;  // -0 becomes 0
      const auto bits = std::bit_cast<int32_t>(score);
      keys[i] = bits ^ (bits >> 31 & INT32_MAX);
    }
  }
  static uint32_t equal_from(const int32_t* keys, int32_t pattern, int shift) {
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i)
      mask |= static_cast<uint32_t>(static_cast<uint32_t>(keys[i] ^ pattern) >> shift == 0) << i;
    return mask;
  }
  static uint32_t greater(const int32_t* keys, int32_t than) {
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(keys[i] > than) << i;
    return mask;
  }
};

}  // namespace

void attend_spans(const AttentionInput& input, int64_t span_begin, int64_t span_end,
                  int64_t head_begin, int64_t head_end, float* scratch,
                  const AttentionState& state) {
  const int64_t latent = input.latent;
  float* key = scratch;
  float* next_out = key + latent + input.rope;
  for (int64_t h = head_begin; h < head_end; ++h) {
    const float* query = input.queries + h * (latent + input.rope);
    for (int64_t span = span_begin; span < span_end; ++span) {
      const int64_t first = span * attention_span_keys;
      const int64_t end = first + attention_span_keys;
      const int64_t last = end < input.key_count ? end : input.key_count;
      if (span == span_begin) {
        attend_span(input, query, first, last, key, state.max[h], state.sum[h],
                    state.out + h * latent);
        continue;
      }
      float max, sum;
      attend_span(input, query, first, last, key, max, sum, next_out);
      merge(state.max[h], state.sum[h], state.out + h * latent, max, sum, next_out, latent);
    }
  }
}

void finish_attention(const AttentionState* states, int64_t state_count, int64_t latent,
                      int64_t head_begin, int64_t head_end, float* out) {
  for (int64_t h = head_begin; h < head_end; ++h) {
    float* head_out = out + h * latent;
    if (state_count == 0) memset(head_out, 0, static_cast<size_t>(latent) * sizeof(float));
    if (state_count == 0) continue;
    float max = states[0].max[h], sum = states[0].sum[h];
    memmove(head_out, states[0].out + h * latent, static_cast<size_t>(latent) * sizeof(float));
    for (int64_t i = 1; i < state_count; ++i) {
      merge(max, sum, head_out, states[i].max[h], states[i].sum[h], states[i].out + h * latent,
            latent);
    }
    const float factor = 1.0f / sum;
    for (int64_t i = 0; i < latent; ++i) head_out[i] *= factor;
  }
}

void index_scores(const float* queries, const float* head_weights, int64_t heads,
                  const CacheView& keys, float scale, float* scratch, float* scores, int64_t begin,
                  int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    read_key(keys, t, scratch);
    float lanes[dot_lanes] = {};
    for (int64_t h = 0; h < heads; ++h) {
      const float score = chain_dot(scratch, queries + h * keys.row.width, keys.row.width) * scale;
      float& lane = lanes[h % dot_lanes];
      lane = std::fma(head_weights[h], larger(0.0f, score), lane);
    }
    scores[t] = sum_lanes(lanes);
  }
}

void select_top(const float* scores, int64_t count, int64_t wanted, int32_t* scratch,
                int32_t* positions) {
  select_top_of<Order16>(scores, count, wanted, scratch, positions);
}

}  // namespace glmd::scalar
