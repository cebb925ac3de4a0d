// Absorbed attention, 4 heads at a time, so that a key is read and converted once for all of them.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"

namespace glmd::avx2 {
namespace {

constexpr int64_t tile_keys = 64;
constexpr int64_t heads_at_once = 4;

template <class Element>
const Element* cached_row(const CacheView& cache, int64_t position) {
  const uint8_t* block = cache.blocks[position / cache_block_tokens];
  return reinterpret_cast<const Element*>(block) + position % cache_block_tokens * cache.width;
}

// Float dots of one key with `heads` queries that lie `width` apart.
template <class Element, int heads>
inline void dot_queries(const Element* key, const float* queries, int64_t width, float* dots) {
  Lanes sums[heads];
  for (int h = 0; h < heads; ++h) sums[h] = zero_lanes();
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
    const Lanes values = load_16(key + i);
    for (int h = 0; h < heads; ++h) multiply_add(sums[h], values, load_16(queries + h * width + i));
  }
  if (i < width) {
    const Lanes values = load_16(key + i, width - i);
    for (int h = 0; h < heads; ++h) {
      const Lanes before = sums[h];
      multiply_add(sums[h], values, load_16(queries + h * width + i, width - i));
      keep_behind(sums[h], before, width - i);
    }
  }
  for (int h = 0; h < heads; ++h) dots[h] = sum_lanes(sums[h]);
}

// 16 columns (the first `n`) of all heads: what was there times `rescale`, then the keys in order.
template <class Element, int heads>
inline void add_keys(const Element* const* keys, int64_t key_count, int64_t column, int64_t n,
                     const float (*weights)[tile_keys], const float* rescale, float* out,
                     int64_t out_stride) {
  const int64_t n_high = n > 8 ? n - 8 : 0;
  Lanes sums[heads];
  for (int h = 0; h < heads; ++h) {
    sums[h] = load_16(out + h * out_stride + column, n);
    const __m256 factor = _mm256_set1_ps(rescale[h]);
    sums[h] = {_mm256_mul_ps(sums[h].low, factor), _mm256_mul_ps(sums[h].high, factor)};
  }
  for (int64_t k = 0; k < key_count; ++k) {
    const Lanes values = n == 16 ? load_16(keys[k] + column) : load_16(keys[k] + column, n);
    for (int h = 0; h < heads; ++h) {
      const __m256 weight = _mm256_set1_ps(weights[h][k]);
      multiply_add(sums[h], {weight, weight}, values);
    }
  }
  for (int h = 0; h < heads; ++h) {
    store(out + h * out_stride + column, sums[h].low, n);
    if (n_high > 0) store(out + h * out_stride + column + 8, sums[h].high, n_high);
  }
}

template <class Element, int heads>
void attend_heads(const AttentionInput& input, const float* queries, float* out) {
  const int64_t width = input.latent + input.rope;
  float max[heads], sum[heads];
  for (int h = 0; h < heads; ++h) {
    max[h] = -__builtin_inff();
    sum[h] = 0.0f;
    for (int64_t i = 0; i < input.latent; ++i) out[h * input.latent + i] = 0.0f;
  }

  for (int64_t first = 0; first < input.key_count; first += tile_keys) {
    const int64_t n = input.key_count - first < tile_keys ? input.key_count - first : tile_keys;
    const Element* keys[tile_keys];
    float scores[heads][tile_keys];
    float new_max[heads], rescale[heads];
    for (int h = 0; h < heads; ++h) new_max[h] = max[h];
    for (int64_t k = 0; k < n; ++k) {
      const int64_t rank = first + k;
      keys[k] = cached_row<Element>(input.cache,
                                    input.positions == nullptr ? rank : input.positions[rank]);
    }
    for (int64_t k = 0; k < n; ++k) {
      float dots[heads];
      dot_queries<Element, heads>(keys[k], queries, width, dots);
      for (int h = 0; h < heads; ++h) {
        scores[h][k] = dots[h] * input.scale;
        if (scores[h][k] > new_max[h]) new_max[h] = scores[h][k];
      }
    }
    for (int h = 0; h < heads; ++h) {
      rescale[h] = exponential(max[h] - new_max[h]);
      sum[h] = __builtin_fmaf(sum[h], rescale[h], exp_and_sum_of(scores[h], n, new_max[h]));
      max[h] = new_max[h];
    }
    for (int64_t column = 0; column < input.latent; column += 16) {
      const int64_t columns = input.latent - column < 16 ? input.latent - column : 16;
      add_keys<Element, heads>(keys, n, column, columns, scores, rescale, out, input.latent);
    }
  }

  if (input.key_count == 0) return;
  for (int h = 0; h < heads; ++h) {
    const float factor = 1.0f / sum[h];
    for (int64_t i = 0; i < input.latent; ++i) out[h * input.latent + i] *= factor;
  }
}

template <class Element>
void attend_range(const AttentionInput& input, float* out, int64_t begin, int64_t end) {
  const int64_t width = input.latent + input.rope;
  int64_t h = begin;
  for (; h + heads_at_once <= end; h += heads_at_once) {
    attend_heads<Element, heads_at_once>(input, input.queries + h * width, out + h * input.latent);
  }
  for (; h < end; ++h)
    attend_heads<Element, 1>(input, input.queries + h * width, out + h * input.latent);
}

template <int heads>
float add_scores(const float* dots, const float* head_weights, float scale, float score) {
  for (int h = 0; h < heads; ++h) {
    const float product = dots[h] * scale;
    score = __builtin_fmaf(head_weights[h], product < 0.0f ? 0.0f : product, score);
  }
  return score;
}

template <class Element>
void score_keys(const float* queries, const float* head_weights, int64_t heads,
                const CacheView& keys, float scale, float* scores, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const auto* key = cached_row<Element>(keys, t);
    float score = 0.0f;
    float dots[heads_at_once];
    int64_t h = 0;
    for (; h + heads_at_once <= heads; h += heads_at_once) {
      dot_queries<Element, heads_at_once>(key, queries + h * keys.width, keys.width, dots);
      score = add_scores<heads_at_once>(dots, head_weights + h, scale, score);
    }
    for (; h < heads; ++h) {
      dot_queries<Element, 1>(key, queries + h * keys.width, keys.width, dots);
      score = add_scores<1>(dots, head_weights + h, scale, score);
    }
    scores[t] = score;
  }
}

}  // namespace

void attend(const AttentionInput& input, float* out, int64_t begin, int64_t end) {
  if (input.cache.is_f32) attend_range<float>(input, out, begin, end);
  if (!input.cache.is_f32) attend_range<Half>(input, out, begin, end);
}

void index_scores(const float* queries, const float* head_weights, int64_t heads,
                  const CacheView& keys, float scale, float* scores, int64_t begin, int64_t end) {
  if (keys.is_f32) score_keys<float>(queries, head_weights, heads, keys, scale, scores, begin, end);
  if (!keys.is_f32) score_keys<Half>(queries, head_weights, heads, keys, scale, scores, begin, end);
}

}  // namespace glmd::avx2
