// Activations in the order in which blocks of weights meet them: all rows of a group of 32 columns
// behind each other, and the next group behind these. A panel is packed once for many tiles.
#pragma once

#include "kernels/avx2/arithmetic.h"
#include "kernels/kernel_table.h"

namespace glmd::avx2 {

static inline int64_t at_most(int64_t n, int64_t most) {
  return n < most ? n : most;
}

static inline __m256i load_vector(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

namespace {

// For few rows: columns as they are, of which four at a time are broadcast.
struct CodeGroup {
  static constexpr int64_t panel_entries = 2048;  // 104 KiB
  int8_t codes[group_columns];
  int16_t starts[4][2];  // per 8 columns: -64 x the codes that meet in one 16-bit lane
  float scale;
};

// For many rows: fours of codes 0 to 7, then 0 to 6 again, so that any eight fours that follow each
// other in a ring are one load within a line.
struct alignas(64) RingGroup {
  static constexpr int64_t panel_entries = 256;  // 16 KiB
  int8_t codes[60];
  float scale;
};

// Starts as above, in a ring too: lane c belongs to fours c and c + 1.
struct alignas(64) OffsetRingGroup : RingGroup {
  int16_t starts[32];  // lanes 0 to 7 twice
};

}  // namespace

// -64 x (the sums of pairs of codes in fours that stand beside each other).
static inline __m256i negated_sums(__m256i codes, __m256i next_fours) {
  const __m256i offset = _mm256_set1_epi8(64);
  const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(offset, codes),
                                        _mm256_maddubs_epi16(offset, next_fours));
  return _mm256_sub_epi16(_mm256_setzero_si256(), both);
}

static inline void fill(CodeGroup& to, __m256i codes, float scale) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes), codes);
  const __m256 starts = _mm256_castsi256_ps(negated_sums(codes, _mm256_shuffle_epi32(codes, 0xb1)));
  const __m128 even =
      _mm_shuffle_ps(_mm256_castps256_ps128(starts), _mm256_extractf128_ps(starts, 1), 0x88);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to.starts), _mm_castps_si128(even));
  to.scale = scale;
}

static inline void fill(RingGroup& to, __m256i codes, float scale) {
  auto* out = reinterpret_cast<__m256i*>(&to);
  const __m256i scales = _mm256_castps_si256(_mm256_set1_ps(scale));
  _mm256_store_si256(out, codes);
  _mm256_store_si256(out + 1, _mm256_blend_epi32(codes, scales, 0x80));
}

static inline void fill(OffsetRingGroup& to, __m256i codes, float scale) {
  fill(static_cast<RingGroup&>(to), codes, scale);
  const __m256i next =
      _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 0));
  const __m256i starts = negated_sums(codes, next);
  auto* out = reinterpret_cast<__m256i*>(to.starts);
  _mm256_store_si256(out, starts);
  _mm256_store_si256(out + 1, starts);
}

// A row at a time. Rows are pages apart, where nothing is fetched ahead by itself: the groups that
// come behind these are sent for, and wait in the second cache.
template <class Group>
static void pack(const Activations& x, int64_t first_row, int64_t rows, int64_t first_group,
                 int64_t groups, Group* panel) {
  const int64_t row_groups = padded_columns(x.columns) / group_columns;
  const int64_t behind = at_most(row_groups - first_group - groups, groups);
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t first = (first_row + n) * row_groups + first_group;
    const int8_t* from = x.codes + first * group_columns;
    for (int64_t g = 0; g < groups; ++g) {
      fill(panel[g * rows + n], load_vector(from + g * group_columns), x.scales[first + g]);
    }
    prefetch_to_second_cache(from + groups * group_columns, behind * group_columns);
    prefetch_to_second_cache(x.scales + first + groups, behind * 4);
  }
}

}  // namespace glmd::avx2
