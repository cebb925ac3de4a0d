// The highest of many scores by radix selection: floats become integers of the same order, three
// histograms (11, 11 and 10 bits) find the integer that the last chosen score has, one pass writes
// the positions. `Vector` says how 16 scores are converted and compared: one for each instruction
// set. Static, so that nothing compiled for one is picked for another.
#pragma once

#include <string.h>

#include "kernels/kernel_table.h"

namespace glmd {

constexpr int64_t top_buckets = 2048;

// The bucket in which the `wanted`-th key from the top lies; `wanted` becomes its rank there.
// Keys are counted into four histograms, so that equal neighbours do not wait for each other.
static inline uint32_t bucket_of_rank(const int32_t* keys, int64_t count, int shift,
                                      int32_t* counts, int64_t& wanted) {
  memset(counts, 0, 4 * top_buckets * sizeof(int32_t));
  const auto bucket = [&](int64_t i) {
    return (static_cast<uint32_t>(keys[i]) ^ 0x80000000u) >> shift & (top_buckets - 1);
  };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) ++counts[j * top_buckets + bucket(i + j)];
  }
  for (; i < count; ++i) ++counts[bucket(i)];
  uint32_t found = top_buckets - 1;
  for (;; --found) {
    int64_t here = 0;
    for (int64_t j = 0; j < 4; ++j) here += counts[j * top_buckets + found];
    if (wanted <= here || found == 0) return found;
    wanted -= here;
  }
}

// Keys whose bits from `shift` up are those of `pattern`, moved to the front of `to`.
template <class Vector>
static inline int64_t keep_bucket(const int32_t* keys, int64_t count, int32_t pattern, int shift,
                                  int32_t* to) {
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += 16) {
    uint32_t mask = Vector::equal_from(keys + i, pattern, shift);
    if (count - i < 16) mask &= (1u << (count - i)) - 1u;
    for (; mask != 0; mask &= mask - 1) to[kept++] = keys[i + __builtin_ctz(mask)];
  }
  return kept;
}

template <class Vector>
static inline void select_top_of(const float* scores, int64_t count, int64_t wanted,
                                 int32_t* scratch, int32_t* positions) {
  int32_t* keys = scratch;
  int32_t* kept = keys + padded_lanes(count);
  int32_t* counts = kept + padded_lanes(count);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) Vector::order(scores + i, keys + i);
  if (i < count) {
    float rest[16];
    for (int64_t j = 0; j < 16; ++j) rest[j] = i + j < count ? scores[i + j] : 0.0f;
    Vector::order(rest, keys + i);
    for (int64_t j = count; j < padded_lanes(count); ++j) keys[j] = INT32_MIN;  // below all scores
  }

  int64_t rank = wanted;  // of the last chosen among what is looked at
  uint32_t last = bucket_of_rank(keys, count, 21, counts, rank) << 21;
  const auto pattern = [&] { return static_cast<int32_t>(last ^ 0x80000000u); };
  int64_t kept_count = keep_bucket<Vector>(keys, count, pattern(), 21, kept);
  last |= bucket_of_rank(kept, kept_count, 10, counts, rank) << 10;
  kept_count = keep_bucket<Vector>(kept, kept_count, pattern(), 10, kept);
  last |= (bucket_of_rank(kept, kept_count, 0, counts, rank) & 1023u);

  int64_t equals_left = rank;
  for (i = 0; i < count; i += 16) {
    uint32_t mask = Vector::greater(keys + i, pattern());
    for (uint32_t equal = Vector::equal_from(keys + i, pattern(), 0); equal != 0 && equals_left > 0;
         equal &= equal - 1) {
      mask |= equal & (0u - equal);
      --equals_left;
    }
    for (; mask != 0; mask &= mask - 1)
      *positions++ = static_cast<int32_t>(i) + __builtin_ctz(mask);
  }
}

}  // namespace glmd
