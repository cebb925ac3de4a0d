// Absorbed attention and index scores in registers of 16.
#include "kernels/attention_tiles.h"

#include "kernels/avx512/arithmetic.h"
#include "kernels/avx512/kernels.h"
#include "kernels/select_top.h"

namespace glmd::avx512 {

namespace {

// Scores as integers, as select_top.h asks for it.
struct Order16 {
  static void order(const float* scores, int32_t* keys) {
    __m512 score = _mm512_loadu_ps(scores);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
    score = _mm512_mask_mov_ps(score, is_nan, _mm512_set1_ps(-__builtin_inff()));
    const __m512i bits =
        _mm512_castps_si512(_mm512_add_ps(score, _mm512_setzero_ps()));  // -0 becomes 0
    const __m512i flips =
        _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MAX));
    _mm512_storeu_si512(keys, _mm512_xor_si512(bits, flips));
  }
  static uint32_t equal_from(const int32_t* keys, int32_t pattern, int shift) {
    const __m512i differs = _mm512_xor_si512(_mm512_loadu_si512(keys), _mm512_set1_epi32(pattern));
    return _mm512_testn_epi32_mask(differs, _mm512_set1_epi32(static_cast<int>(~0u << shift)));
  }
  static uint32_t greater(const int32_t* keys, int32_t than) {
    return _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(keys), _mm512_set1_epi32(than));
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

}  // namespace glmd::avx512
