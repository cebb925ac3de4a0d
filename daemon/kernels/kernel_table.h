// The arithmetic of one instruction set, as functions on plain pointers. scalar/ is the definition;
// avx2/ and avx512/ give the same bits, faster. Nothing here allocates, fails, or starts a thread:
// callers split the output range [begin, end) over a team.
//
// Sums: a quantised dot is one chain over ascending groups of 32, exact integers
// inside a group;
//   nl4, nl5: a = fma(float(idot), float(+-m) * activation_scale, a), result = row_scale * a
//   q8:       a = fma(float(idot), float(f16 scale) * activation_scale, a)
// a float dot has 16 lanes, element i in lane i mod 16, fused multiply-adds in ascending order,
// then lanes are added 8 apart, 4 apart, 2 apart, 1 apart. A sum of squares or of values is a float
// dot too. exp is our own polynomial. Attention and index scores have another order, that of a
// matrix product: each dot of a query and a key is one chain of fused multiply-adds from 0, in
// ascending order, so that heads are lanes and no lane is ever added to another. NaN is NaN: its
// sign and payload are not part of the promise.
#pragma once

#include <stdint.h>

#include "kernels/block_formats.h"

namespace glmd {

// How matrix kernels like their work cut: up to few_rows rows of activations a tile is as good as
// many; more go panel_rows at a time through set_rows rows of the matrix.
constexpr int64_t few_rows = 2;
constexpr int64_t panel_rows = 64;
constexpr int64_t set_rows = 32;

// Rows of activations. Float formats read `values`; quantised formats read codes, scales, sums,
// which `quantise` made from values: per group of 32 a scale = amax / 127 (f32), codes = round to
// nearest even of value / scale (all zero where amax is 0), sums = sum of the codes. Padded columns
// are zero codes. A group that holds infinity or NaN gets a NaN scale, so that every dot with it is
// NaN.
struct Activations {
  const float* values;  // [row_count][value_stride]
  int64_t value_stride;
  const int8_t* codes;  // [row_count][padded_columns]
  const float* scales;  // [row_count][padded_columns / 32]
  const int32_t* sums;  // [row_count][padded_columns / 32]
  int64_t row_count;
  int64_t columns;  // logical
};

// How a cache keeps the values of one token, in one piece: the first `coded` as int8 codes, then
// the scales of their groups, both as `quantise` makes them, then the others in f16 or f32. A coded
// value is read back as float(code) * scale, rounded once.
struct CacheRow {
  int64_t width = 0;  // values
  bool is_f32 = false;
  int64_t coded = 0;

  constexpr int64_t coded_bytes() const {
    return padded_columns(coded) / group_columns * (group_columns + 4);
  }
  constexpr int64_t bytes() const {  // whole words, so that scales are aligned
    return (coded_bytes() + (width - coded) * (is_f32 ? 4 : 2) + 3) / 4 * 4;
  }
};

// A latent cache: tokens in blocks of 64; position p is row p % 64 of those that begin `offset`
// bytes into blocks[p / 64].
constexpr int64_t cache_block_tokens = 64;
struct CacheView {
  const uint8_t* const* blocks;
  CacheRow row;
  int64_t offset = 0;
};

struct AttentionInput {
  const float* queries;  // [heads][latent + rope]: absorbed, rotated
  int64_t heads, latent, rope;
  CacheView cache;           // row.width = latent + rope, latent first
  const int32_t* positions;  // ascending, key_count of them; nullptr: 0..key_count-1
  int64_t key_count;
  float scale;  // on the scores
};

// Keys are cut by rank in the list into spans, spans into tiles. Spans are independent of each
// other, so that one row of many keys can be shared by a team; their results are merged in order.
constexpr int64_t attention_span_keys = 256;
constexpr int64_t attention_tile_keys = 64;
constexpr int64_t attention_span_count(int64_t key_count) {
  return (key_count + attention_span_keys - 1) / attention_span_keys;
}

// What some spans say to each head: the largest score, the sum of weights exp(score - max), and the
// weighted sum of latents.
struct AttentionState {
  float* max;  // [heads]
  float* sum;  // [heads]
  float* out;  // [heads][latent]
};

// Floats that attend_spans needs as scratch for `heads` heads at once, and index_scores.
constexpr int64_t padded_lanes(int64_t n) {
  return (n + 15) / 16 * 16;
}
constexpr int64_t attention_scratch_floats(int64_t heads, int64_t latent, int64_t rope) {
  const int64_t lanes = padded_lanes(heads), width = padded_lanes(latent + rope);
  return lanes * width + attention_tile_keys * (width + lanes) + 3 * lanes +
         padded_lanes(heads * latent);
}
constexpr int64_t index_scratch_floats(int64_t heads, int64_t width) {
  return (padded_lanes(heads) + 16) * padded_lanes(width) + 17 * padded_lanes(heads);
}
constexpr int64_t top_scratch_ints(int64_t count) {
  return 2 * padded_lanes(count) + 4 * 2048;
}
// Weights that share a sum in `weigh`.
constexpr int64_t weigh_block = 1024;

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512"

  // Activations -> codes, scales, sums of `row_count` rows; columns past the logical end become
  // zero codes.
  void (*quantise)(const float* values, int64_t value_stride, int64_t row_count, int64_t columns,
                   int8_t* codes, float* scales, int32_t* sums);

  // y[n * y_stride + r] = dot(row r of w, x[n]) for r in [begin, end); begin is a multiple of 8.
  // Indexed by BlockFormat.
  void (*matmul[block_format_count])(const Matrix& w, const Activations& x, float* y,
                                     int64_t y_stride, int64_t begin, int64_t end);
  // y[n * y_stride + r] = silu(gate row r . x[n]) * (up row r . x[n]); w.rows is that of gate
  // alone.
  void (*gate_up[block_format_count])(const Matrix& w, const Activations& x, float* y,
                                      int64_t y_stride, int64_t begin, int64_t end);
  // One embedding row to f32. `row` is its embedding_row_bytes. Null for nl4 and nl5, which no
  // embedding has.
  void (*embedding_row[block_format_count])(const uint8_t* row, int64_t columns, float* out);

  // Weights -> codes, a row at a time, for the converter: per group of 32 its scale as stored (nl4,
  // nl5: sign and magnitude, q8: f16 bits) and 32 codes, zeros behind the logical end. nl4 and nl5
  // search: the scale is tried at several fractions of the group's amax with both signs, and the
  // one with the least squared error wins (the first of equals). Entries are the nearest ones;
  // between two, the higher. Values are at most 1e38, `row_scale` is 0 (zeros) or at least 1e-34.
  // Null for the float formats.
  void (*encode_row[block_format_count])(const float* values, int64_t columns, float row_scale,
                                         uint16_t* scales, uint8_t* codes);
  // The largest |x[i]|, 0 of none; infinity or NaN where a value is not finite.
  float (*largest_magnitude)(const float* x, int64_t n);

  // out[i] = (x[i] * (1 / sqrt(mean(x^2) + eps))) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // out[i] = ((x[i] - mean) * (1 / sqrt(var + eps))) * weight[i] + bias[i]; var = mean((x -
  // mean)^2)
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                     float* out);
  // Rotates adjacent pairs: (a, b) -> (a cos - b sin, b cos + a sin), j-th pair with cos[j],
  // sin[j].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t pairs);
  // y[i] = fma(weight, x[i], y[i])
  void (*add_scaled)(float* y, const float* x, float weight, int64_t n);
  // s[i] = 1 / (1 + exp(-x[i]))
  void (*sigmoid)(const float* x, int64_t n, float* s);
  // x[i] = exp(x[i] - max); returns the sum as a float dot with ones.
  float (*exp_and_sum)(float* x, int64_t n, float max);
  // The place of the largest of n >= 1 values, the first of equal ones; -1: one is not finite.
  int64_t (*find_largest)(const float* x, int64_t n);
  // weights[i] = exp((x[i] - max) * scale); sums[j] = float dot with ones of the j-th weigh_block.
  void (*weigh)(const float* x, int64_t n, float max, float scale, float* weights, float* sums);
  // The places of values >= limit, ascending; returns how many.
  int64_t (*find_at_least)(const float* x, int64_t n, float limit, int32_t* places);
  void (*to_f16)(const float* x, int64_t n, uint16_t* out);  // round to nearest even
  void (*from_f16)(const uint16_t* x, int64_t n, float* out);

  // The state of heads [head_begin, head_end) over spans [span_begin, span_end), at least one. A
  // span starts from max = -infinity, sum and out 0. Per tile: scores = dot over latent + rope,
  // times scale; m = the largest of max and the scores; r = exp(max - m), weights w = exp(score -
  // m); sum = sum * r, then each w is added, ascending; out = out * r, then out = fma(w, latent,
  // out), ascending. Spans are merged in ascending order: m = the larger max, a = exp(max - m), b =
  // exp(next max - m), sum = fma(sum, a, next sum * b), out = fma(next out, b, out * a). `scratch`:
  // attention_scratch_floats(head_end - head_begin, ...), at a multiple of 64 bytes.
  void (*attend_spans)(const AttentionInput& input, int64_t span_begin, int64_t span_end,
                       int64_t head_begin, int64_t head_end, float* scratch,
                       const AttentionState& state);
  // Merges states of consecutive spans as above; out[h][latent] = merged out * (1 / sum). No state:
  // zero. `out` may be that of states[0].
  void (*finish_attention)(const AttentionState* states, int64_t state_count, int64_t latent,
                           int64_t head_begin, int64_t head_end, float* out);

  // scores[t] = sum over heads of w[h] * relu(query[h] . key[t] * scale), keys t in [begin, end).
  // The dot is one chain, the sum over heads a float dot. `scratch`: index_scratch_floats(heads,
  // keys.row.width), at a multiple of 64 bytes.
  void (*index_scores)(const float* queries, const float* head_weights, int64_t heads,
                       const CacheView& keys, float scale, float* scratch, float* scores,
                       int64_t begin, int64_t end);
  // The places of the `wanted` highest of `count` scores, ascending; 1 <= wanted <= count. Ties:
  // the lower place. NaN ranks as -infinity. `scratch`: top_scratch_ints(count).
  void (*select_top)(const float* scores, int64_t count, int64_t wanted, int32_t* scratch,
                     int32_t* positions);
};

const KernelTable& scalar_kernels();
// The table of that name if this CPU runs it, else nullptr. "auto": the fastest.
const KernelTable* find_kernels(const char* name);

}  // namespace glmd
