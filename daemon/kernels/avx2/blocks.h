// Blocks of weights, 8 rows by 32 columns: vector j holds columns 4j to 4j + 3, a row in each lane.
//
// Few rows of activations take vectors in pairs, as they are unpacked, and four codes at a time are
// broadcast to all lanes. `pair` i, from 3 down to 0, gives vectors 2i and 2i + 1; `add` adds their
// products with the codes of these columns.
//
// For many rows that is too much: a broadcast is an instruction and a load for each multiplication.
// So the weights are `turned` once a block, lane r by r places: vector j holds four (r + j) mod 8
// of row r. It meets 32 bytes of codes as they lie in a ring, from four j on, and that load is an
// operand of the multiplication. The sum over a group is exact, so the order of its fours does not
// matter. Two rows go side by side, step by step: Zen 3 hands instructions to its pipes by their
// place in the code, and like ones in pairs spread best.
#pragma once

#include "kernels/avx2/panel.h"

namespace glmd::avx2 {

static inline __m256i broadcast_4(const int8_t* codes) {
  int32_t four;
  memcpy(&four, codes, 4);
  return _mm256_set1_epi32(four);
}

// Pins a sum where it is: left alone, GCC keeps all products of a group and adds them up as a
// tree, which takes more registers than there are.
static inline __m256i pinned(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

static inline __m256i pair_sums(__m256i products) {
  return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
}

// Lanes with `bit` in their number come from `places` vectors further on, in a ring of `count`.
template <int bit, int places, int count>
static inline void turn_lanes(__m256i (&vectors)[count]) {
  constexpr int lanes = bit == 1 ? 0xaa : bit == 2 ? 0xcc : 0xf0;
  __m256i turned[count];
  for (int j = 0; j < count; ++j) {
    turned[j] = _mm256_blend_epi32(vectors[j], vectors[(j + places) % count], lanes);
  }
  for (int j = 0; j < count; ++j) vectors[j] = turned[j];
}

// A scale byte m | sign << 7 as +-m.
static inline __m256 nl_scales(const uint8_t* block) {
  int64_t eight;
  memcpy(&eight, block, 8);
  const __m256i at_both_ends =
      _mm256_setr_epi8(0, -1, -1, 0, 1, -1, -1, 1, 2, -1, -1, 2, 3, -1, -1, 3,  //
                       4, -1, -1, 4, 5, -1, -1, 5, 6, -1, -1, 6, 7, -1, -1, 7);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), at_both_ends);
  const __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi32(127));
  return _mm256_cvtepi32_ps(_mm256_sign_epi32(magnitudes, bytes));
}

static inline __m256i entry_table(const int8_t* entries) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries));
  return _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(64)));
}

namespace {

// Weights with 64 added, which makes them unsigned.
struct OffsetWeights {
  using Ring = OffsetRingGroup;
  static constexpr int64_t many_rows = 8;  // from here on turning the lanes pays
  static constexpr int64_t prefetch_bytes = 4096;
  static constexpr bool has_row_scales = true;

  static __m256 scales(const uint8_t* block) { return nl_scales(block); }

  static __m256i add(__m256i sum, int i, const __m256i* weights, const CodeGroup& x) {
    int32_t start;
    memcpy(&start, x.starts[i], 4);
    __m256i products = _mm256_set1_epi32(start);
    for (int j = 0; j < 2; ++j) {
      products = pinned(_mm256_add_epi16(
          products, _mm256_maddubs_epi16(weights[j], broadcast_4(x.codes + 8 * i + 4 * j))));
    }
    return pinned(_mm256_add_epi32(sum, pair_sums(products)));
  }

  // dots = the products of turned weights with the codes of each row.
  template <int rows>
  [[gnu::always_inline]] static void ring_dots(const __m256i* weights, const Ring* x,
                                               __m256i* dots) {
    for (int i = 0; i < 4; ++i) {
      __m256i sums[rows], products[rows];
      for (int n = 0; n < rows; ++n) sums[n] = ring_products(weights, 2 * i, x[n]);
      for (int n = 0; n < rows; ++n) products[n] = ring_products(weights, 2 * i + 1, x[n]);
      for (int n = 0; n < rows; ++n) {
        sums[n] = pinned(_mm256_add_epi16(sums[n], load_vector(x[n].starts + 4 * i)));
      }
      for (int n = 0; n < rows; ++n) sums[n] = pinned(_mm256_add_epi16(sums[n], products[n]));
      for (int n = 0; n < rows; ++n) sums[n] = pinned(pair_sums(sums[n]));
      for (int n = 0; n < rows; ++n) {
        dots[n] = i == 0 ? sums[n] : pinned(_mm256_add_epi32(dots[n], sums[n]));
      }
    }
  }

 private:
  [[gnu::always_inline]] static __m256i ring_products(const __m256i* weights, int four,
                                                      const Ring& x) {
    return pinned(_mm256_maddubs_epi16(weights[four], load_vector(x.codes + 4 * four)));
  }
};

struct Nl4 : OffsetWeights {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl4);

  explicit Nl4(const uint8_t* block) : nibbles_(block + 8) {}

  void pair(int i, __m256i* weights) const {
    look_up(pinned(load_vector(nibbles_ + 32 * i)), weights);
  }

  static void turned(const uint8_t* block, __m256i (&weights)[8]) {
    __m256i nibbles[4];
    for (int i = 0; i < 4; ++i) nibbles[i] = load_vector(block + 8 + 32 * i);
    turn_lanes<2, 1>(nibbles);
    turn_lanes<4, 2>(nibbles);
    for (int i = 0; i < 4; ++i) look_up(nibbles[i], weights + 2 * i);
    turn_lanes<1, 1>(weights);
  }

 private:
  static void look_up(__m256i nibbles, __m256i* weights) {
    const __m256i table = entry_table(nl4_table), mask = _mm256_set1_epi8(15);
    weights[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(nibbles, mask));
    weights[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask));
  }

  const uint8_t* nibbles_;
};

struct Nl5 : OffsetWeights {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl5);

  explicit Nl5(const uint8_t* block) : nibbles_(block + 8), fifth_bits_(load_vector(block + 136)) {}

  void pair(int i, __m256i* weights) { look_up(pinned(load_vector(nibbles_ + 32 * i)), weights); }

  static void turned(const uint8_t* block, __m256i (&weights)[8]) {
    __m256i nibbles[4];
    for (int i = 0; i < 4; ++i) nibbles[i] = load_vector(block + 8 + 32 * i);
    turn_lanes<2, 1>(nibbles);
    turn_lanes<4, 2>(nibbles);
    Nl5 bits(block);
    bits.turn_fifth_bits();
    for (int i = 3; i >= 0; --i) bits.look_up(nibbles[i], weights + 2 * i);
    turn_lanes<1, 1>(weights);
  }

 private:
  void look_up(__m256i nibbles, __m256i* weights) {
    const __m256i mask = _mm256_set1_epi8(15);
    weights[1] = chosen(_mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask));
    weights[0] = chosen(_mm256_and_si256(nibbles, mask));
  }

  // The fifth bit, at the top of its byte, chooses between the halves of the table; then that of
  // the vector before comes to the top.
  __m256i chosen(__m256i low_bits) {
    const __m256i found =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(entry_table(nl5_table), low_bits),
                           _mm256_shuffle_epi8(entry_table(nl5_table + 16), low_bits), fifth_bits_);
    fifth_bits_ = _mm256_add_epi8(fifth_bits_, fifth_bits_);
    return found;
  }

  // Bit j of a byte is that of vector j, and the nibbles of lane r are turned by the even part of
  // r: its bytes are rotated right as far.
  void turn_fifth_bits() {
    const __m256i right = _mm256_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6);
    const __m256i left = _mm256_sub_epi32(_mm256_set1_epi32(8), right);
    const __m256i kept = _mm256_setr_epi32(-1, -1, 0x3f3f3f3f, 0x3f3f3f3f, 0x0f0f0f0f, 0x0f0f0f0f,
                                           0x03030303, 0x03030303);
    fifth_bits_ = _mm256_or_si256(_mm256_and_si256(kept, _mm256_srlv_epi32(fifth_bits_, right)),
                                  _mm256_andnot_si256(kept, _mm256_sllv_epi32(fifth_bits_, left)));
  }

  const uint8_t* nibbles_;
  __m256i fifth_bits_;
};

// Four vectors of signed weights w as |w| and s = -1 where w < 0, else 0. Many rows complement
// codes instead of negating them, since vpsignb takes no codes as an operand: |w| (x ^ s) = w x +
// |w| s, and the sum of |w| s, all the same for each row, is where dots start. 127 x 128 x 2 fits
// 16 bits.
static inline void split(const __m256i* weights, __m256i* magnitudes, __m256i* signs) {
  for (int j = 0; j < 4; ++j) {
    magnitudes[j] = _mm256_abs_epi8(weights[j]);
    signs[j] = _mm256_cmpgt_epi8(_mm256_setzero_si256(), weights[j]);
  }
}

struct Q8 {
  using Ring = RingGroup;
  static constexpr int64_t many_rows = 16;
  static constexpr int64_t prefetch_bytes = 3072;  // 6144 is slower on Zen 3, 2048 on Zen 4
  static constexpr int64_t bytes = block_bytes(BlockFormat::q8);
  static constexpr bool has_row_scales = false;

  static __m256 scales(const uint8_t* block) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
  }

  explicit Q8(const uint8_t* block) : codes_(block + 16) {}

  // Magnitudes; the signs are read again.
  void pair(int i, __m256i* weights) const {
    for (int j = 0; j < 2; ++j) weights[j] = _mm256_abs_epi8(weights_of(2 * i + j));
  }

  __m256i add(__m256i sum, int i, const __m256i* weights, const CodeGroup& x) const {
    for (int j = 0; j < 2; ++j) {
      const __m256i codes =
          _mm256_sign_epi8(broadcast_4(x.codes + 8 * i + 4 * j), weights_of(2 * i + j));
      sum = pinned(_mm256_add_epi32(sum, pair_sums(_mm256_maddubs_epi16(weights[j], codes))));
    }
    return sum;
  }

  static void turned(const uint8_t* block, __m256i (&weights)[8]) {
    for (int j = 0; j < 8; ++j) weights[j] = Q8(block).weights_of(j);
    turn_lanes<2, 2>(weights);
    turn_lanes<4, 4>(weights);
    turn_lanes<1, 1>(weights);
  }

  // The sum of -|w| s, which is that of -w where w < 0.
  static __m256i ring_start(const uint8_t* block) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum = zero;
    for (int j = 0; j < 8; ++j) {
      const __m256i negative = _mm256_min_epi8(Q8(block).weights_of(j), zero);
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), negative));
    }
    return _mm256_sub_epi32(zero, pair_sums(sum));
  }

  // Adds what four turned vectors, from `first` on, give with the codes of each row.
  template <int rows>
  [[gnu::always_inline]] static void add_ring_dots(const __m256i* magnitudes, const __m256i* signs,
                                                   int first, const Ring* x, __m256i* dots) {
    for (int j = 0; j < 4; j += 2) {
      __m256i a[rows], b[rows];
      for (int n = 0; n < rows; ++n) a[n] = ring_codes(signs[j], x[n], first + j);
      for (int n = 0; n < rows; ++n) b[n] = ring_codes(signs[j + 1], x[n], first + j + 1);
      for (int n = 0; n < rows; ++n) a[n] = pinned(_mm256_maddubs_epi16(magnitudes[j], a[n]));
      for (int n = 0; n < rows; ++n) b[n] = pinned(_mm256_maddubs_epi16(magnitudes[j + 1], b[n]));
      for (int n = 0; n < rows; ++n) a[n] = pinned(pair_sums(a[n]));
      for (int n = 0; n < rows; ++n) b[n] = pinned(pair_sums(b[n]));
      for (int n = 0; n < rows; ++n) dots[n] = pinned(_mm256_add_epi32(dots[n], a[n]));
      for (int n = 0; n < rows; ++n) dots[n] = pinned(_mm256_add_epi32(dots[n], b[n]));
    }
  }

 private:
  [[gnu::always_inline]] static __m256i ring_codes(__m256i signs, const Ring& x, int four) {
    return pinned(_mm256_xor_si256(signs, load_vector(x.codes + 4 * four)));
  }
  __m256i weights_of(int j) const { return load_vector(codes_ + 32 * j); }

  const uint8_t* codes_;
};

}  // namespace
}  // namespace glmd::avx2
