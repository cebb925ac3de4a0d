// Absorbed attention and index scores in registers of 8.
#include "kernels/attention_tiles.h"

#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"
#include "kernels/select_top.h"

namespace glmd::avx2 {

namespace {

// Scores as integers, as select_top.h asks for it.
struct Order16 {
  static __m256i ordered(const float* scores) {
    __m256 score = load(scores);
    const __m256 is_nan = _mm256_cmp_ps(score, score, _CMP_UNORD_Q);
    score = _mm256_blendv_ps(score, _mm256_set1_ps(-__builtin_inff()), is_nan);
    const __m256i bits =
        _mm256_castps_si256(_mm256_add_ps(score, _mm256_setzero_ps()));  // -0 becomes 0
    const __m256i flips =
        _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(INT32_MAX));
    return _mm256_xor_si256(bits, flips);
  }
  static __m256i load_keys(const int32_t* keys) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys));
  }
  static uint32_t mask_of(__m256i low, __m256i high) {
    const int low_bits = _mm256_movemask_ps(_mm256_castsi256_ps(low));
    const int high_bits = _mm256_movemask_ps(_mm256_castsi256_ps(high));
    return static_cast<uint32_t>(low_bits | high_bits << 8);
  }
  static void order(const float* scores, int32_t* keys) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys), ordered(scores));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys + 8), ordered(scores + 8));
  }
  static uint32_t equal_from(const int32_t* keys, int32_t pattern, int shift) {
    const __m256i patterns = _mm256_set1_epi32(pattern), zero = _mm256_setzero_si256();
    const __m256i low = _mm256_srli_epi32(_mm256_xor_si256(load_keys(keys), patterns), shift);
    const __m256i high = _mm256_srli_epi32(_mm256_xor_si256(load_keys(keys + 8), patterns), shift);
    return mask_of(_mm256_cmpeq_epi32(low, zero), _mm256_cmpeq_epi32(high, zero));
  }
  static uint32_t greater(const int32_t* keys, int32_t than) {
    const __m256i limit = _mm256_set1_epi32(than);
    return mask_of(_mm256_cmpgt_epi32(load_keys(keys), limit),
                   _mm256_cmpgt_epi32(load_keys(keys + 8), limit));
  }
};

}  // namespace

void attend_spans(const AttentionInput& input, int64_t span_begin, int64_t span_end,
                  int64_t head_begin, int64_t head_end, float* scratch,
                  const AttentionState& state) {
  attend_spans_of<Lanes>(input, span_begin, span_end, head_begin, head_end, scratch, state);
}

void finish_attention(const AttentionState* states, int64_t state_count, int64_t latent,
                      int64_t head_begin, int64_t head_end, float* out) {
  finish_attention_of<Lanes>(states, state_count, latent, head_begin, head_end, out);
}

void index_scores(const float* queries, const float* head_weights, int64_t heads,
                  const CacheView& keys, float scale, float* scratch, float* scores, int64_t begin,
                  int64_t end) {
  index_scores_of<Lanes>(queries, head_weights, heads, keys, scale, scratch, scores, begin, end);
}

void select_top(const float* scores, int64_t count, int64_t wanted, int32_t* scratch,
                int32_t* positions) {
  select_top_of<Order16>(scores, count, wanted, scratch, positions);
}

}  // namespace glmd::avx2
