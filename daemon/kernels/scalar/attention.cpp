// Absorbed attention over one latent stream, and the scores that choose its keys.
#include "kernels/scalar/arithmetic.h"
#include "kernels/scalar/kernels.h"

namespace glmd::scalar {
namespace {

constexpr int64_t tile_keys = 64;

template <class Element>
const Element* cached_row(const CacheView& cache, int64_t position) {
  const uint8_t* block = cache.blocks[position / cache_block_tokens];
  return reinterpret_cast<const Element*>(block) + position % cache_block_tokens * cache.width;
}

int64_t key_position(const AttentionInput& input, int64_t rank) {
  return input.positions == nullptr ? rank : input.positions[rank];
}

// Online softmax: `out` and `sum` are relative to the maximum so far.
template <class Element>
void attend_head(const AttentionInput& input, const float* query, float* out) {
  float max = -std::bit_cast<float>(0x7f800000u);
  float sum = 0.0f;
  for (int64_t i = 0; i < input.latent; ++i) out[i] = 0.0f;

  for (int64_t first = 0; first < input.key_count; first += tile_keys) {
    const int64_t n = input.key_count - first < tile_keys ? input.key_count - first : tile_keys;
    float scores[tile_keys];
    float new_max = max;
    for (int64_t k = 0; k < n; ++k) {
      const auto* key = cached_row<Element>(input.cache, key_position(input, first + k));
      scores[k] = float_dot(key, query, input.latent + input.rope) * input.scale;
      if (scores[k] > new_max) new_max = scores[k];
    }

    const float rescale = exponential(max - new_max);
    sum = std::fma(sum, rescale, exp_and_sum(scores, n, new_max));
    for (int64_t i = 0; i < input.latent; ++i) out[i] *= rescale;
    for (int64_t k = 0; k < n; ++k) {
      const auto* key = cached_row<Element>(input.cache, key_position(input, first + k));
      for (int64_t i = 0; i < input.latent; ++i)
        out[i] = std::fma(scores[k], load(key + i), out[i]);
    }
    max = new_max;
  }

  if (input.key_count == 0) return;
  const float factor = 1.0f / sum;
  for (int64_t i = 0; i < input.latent; ++i) out[i] *= factor;
}

template <class Element>
void score_keys(const float* queries, const float* head_weights, int64_t heads,
                const CacheView& keys, float scale, float* scores, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const auto* key = cached_row<Element>(keys, t);
    float score = 0.0f;
    for (int64_t h = 0; h < heads; ++h) {
      const float product = float_dot(key, queries + h * keys.width, keys.width) * scale;
      score = std::fma(head_weights[h], product < 0.0f ? 0.0f : product, score);
    }
    scores[t] = score;
  }
}

}  // namespace

void attend(const AttentionInput& input, float* out, int64_t begin, int64_t end) {
  for (int64_t h = begin; h < end; ++h) {
    const float* query = input.queries + h * (input.latent + input.rope);
    float* head_out = out + h * input.latent;
    if (input.cache.is_f32) attend_head<float>(input, query, head_out);
    if (!input.cache.is_f32) attend_head<Half>(input, query, head_out);
  }
}

void index_scores(const float* queries, const float* head_weights, int64_t heads,
                  const CacheView& keys, float scale, float* scores, int64_t begin, int64_t end) {
  if (keys.is_f32) score_keys<float>(queries, head_weights, heads, keys, scale, scores, begin, end);
  if (!keys.is_f32) score_keys<Half>(queries, head_weights, heads, keys, scale, scores, begin, end);
}

}  // namespace glmd::scalar
