// Quantised matrices: 8 rows lie interleaved, so one 32-byte vector of weights meets 4 broadcast
// activations, each 32-bit lane is a row of the matrix, and nothing is summed across lanes.
//
// nl4, nl5: table entries are looked up with 64 added, which makes them unsigned; vpmaddubsw
// multiplies them with signed codes (127 x 127 x 2 fits 16 bits). Two such products are added
// before they are widened: their sum may wrap, but it starts at what takes the 64 off again, and
// the true sum of four products fits (63 x 127 x 4), so it comes out right. q8: |weight| times the
// activation with the weight's sign, which allows no such sum.
//
// A group of one tile is unpacked into 8 registers and meets all rows of activations before the
// next group: no weight is written back, and any number of rows runs through the same loop.
// Activations come from a panel in the order of use, which many tiles share; float sums wait in the
// first cache.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"
#include "platform/check.h"

namespace glmd::avx2 {
namespace {

constexpr int64_t prefetch_bytes = 6144;
constexpr int64_t panel_entries = 2048;  // 104 KiB of activations
constexpr int64_t sum_entries = 2048;    // 64 KiB of sums, of 8 outputs each

int64_t at_most(int64_t n, int64_t most) {
  return n < most ? n : most;
}

__m256i load_vector(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

__m256i broadcast_4(const int8_t* codes) {
  int32_t four;
  memcpy(&four, codes, 4);
  return _mm256_set1_epi32(four);
}

// Pins a sum where it is: left alone, GCC keeps all products of a group and adds them up as a
// tree, which takes more registers than there are.
__m256i pinned(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// ---- Activations: 32 columns of one row, and all rows of a group behind each other.
struct CodeGroup {
  int8_t codes[group_columns];
  int16_t starts[4][2];  // per 8 columns: -64 x the codes that meet in one 16-bit lane
  float scale;
};

// -64 x (the sums of pairs of codes in columns 8i..8i+3 + those in 8i+4..8i+7).
__m128i starts_of(__m256i codes) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(64), codes);
  const __m256i both = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
  const __m256 negated = _mm256_castsi256_ps(_mm256_sub_epi16(_mm256_setzero_si256(), both));
  return _mm_castps_si128(
      _mm_shuffle_ps(_mm256_castps256_ps128(negated), _mm256_extractf128_ps(negated, 1), 0x88));
}

// A row at a time. Rows are pages apart, where nothing is fetched ahead by itself: the groups that
// come behind these are sent for, and wait in the second cache.
void pack(const Activations& x, int64_t first_row, int64_t rows, int64_t first_group,
          int64_t groups, CodeGroup* panel) {
  const int64_t row_groups = padded_columns(x.columns) / group_columns;
  const int64_t behind = at_most(row_groups - first_group - groups, groups);
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t first = (first_row + n) * row_groups + first_group;
    const int8_t* from = x.codes + first * group_columns;
    for (int64_t g = 0; g < groups; ++g) {
      CodeGroup& to = panel[g * rows + n];
      const __m256i codes = load_vector(from + g * group_columns);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes), codes);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to.starts), starts_of(codes));
      to.scale = x.scales[first + g];
    }
    prefetch_to_second_cache(from + groups * group_columns, behind * group_columns);
    prefetch_to_second_cache(x.scales + first + groups, behind * 4);
  }
}

// ---- A block: `pair` i, from 3 down to 0, gives the weights of columns 8i..8i+3 and 8i+4..8i+7;
// `add` adds their products with the codes of these columns.

// A scale byte m | sign << 7 as +-m.
__m256 nl_scales(const uint8_t* block) {
  int64_t eight;
  memcpy(&eight, block, 8);
  const __m256i at_both_ends =
      _mm256_setr_epi8(0, -1, -1, 0, 1, -1, -1, 1, 2, -1, -1, 2, 3, -1, -1, 3,  //
                       4, -1, -1, 4, 5, -1, -1, 5, 6, -1, -1, 6, 7, -1, -1, 7);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), at_both_ends);
  const __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi32(127));
  return _mm256_cvtepi32_ps(_mm256_sign_epi32(magnitudes, bytes));
}

__m256i entry_table(const int8_t* entries) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries));
  return _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(64)));
}

// Weights with 64 added.
struct OffsetWeights {
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
    return pinned(_mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1))));
  }
};

struct Nl4 : OffsetWeights {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl4);

  explicit Nl4(const uint8_t* block) : nibbles_(block + 8) {}
  void pair(int i, __m256i* weights) const {
    const __m256i table = entry_table(nl4_table), mask = _mm256_set1_epi8(15);
    const __m256i nibbles = pinned(load_vector(nibbles_ + 32 * i));
    weights[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(nibbles, mask));
    weights[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask));
  }

 private:
  const uint8_t* nibbles_;
};

struct Nl5 : OffsetWeights {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl5);

  explicit Nl5(const uint8_t* block) : nibbles_(block + 8), fifth_bits_(load_vector(block + 136)) {}
  void pair(int i, __m256i* weights) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i nibbles = pinned(load_vector(nibbles_ + 32 * i));
    weights[1] = look_up(_mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask));
    weights[0] = look_up(_mm256_and_si256(nibbles, mask));
  }

 private:
  // The fifth bit, at the top of its byte, chooses between the halves of the table; then that of
  // the vector before comes to the top.
  __m256i look_up(__m256i low_bits) {
    const __m256i found =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(entry_table(nl5_table), low_bits),
                           _mm256_shuffle_epi8(entry_table(nl5_table + 16), low_bits), fifth_bits_);
    fifth_bits_ = _mm256_add_epi8(fifth_bits_, fifth_bits_);
    return found;
  }

  const uint8_t* nibbles_;
  __m256i fifth_bits_;
};

// Magnitudes; the signs are read again.
struct Q8 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::q8);
  static constexpr bool has_row_scales = false;
  static __m256 scales(const uint8_t* block) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
  }

  explicit Q8(const uint8_t* block) : codes_(block + 16) {}
  void pair(int i, __m256i* weights) const {
    for (int j = 0; j < 2; ++j) weights[j] = _mm256_abs_epi8(signed_weights(i, j));
  }
  __m256i add(__m256i sum, int i, const __m256i* weights, const CodeGroup& x) const {
    for (int j = 0; j < 2; ++j) {
      const __m256i codes =
          _mm256_sign_epi8(broadcast_4(x.codes + 8 * i + 4 * j), signed_weights(i, j));
      sum = pinned(_mm256_add_epi32(
          sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights[j], codes), _mm256_set1_epi16(1))));
    }
    return sum;
  }

 private:
  __m256i signed_weights(int i, int j) const { return load_vector(codes_ + 64 * i + 32 * j); }

  const uint8_t* codes_;
};

__m256 add_group(__m256 sum, __m256i dot, __m256 scales, const CodeGroup& x) {
  const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(x.scale));
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
}

void prefetch(const uint8_t* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + line, _MM_HINT_T0);
  }
}

// ---- A tile (parts = 1), or one of gate and one of up in turn (parts = 2), against the panel.

// Few rows: each pair of vectors is used as it is unpacked, gate and up share broadcasts, and sums
// stay in registers.
template <class Block, int parts, int rows>
void add_tile(const uint8_t* blocks, int64_t ahead, int64_t groups, const CodeGroup* x,
              __m256 (*sums)[parts]) {
  __m256 local[rows][parts];
  for (int n = 0; n < rows; ++n) {
    for (int p = 0; p < parts; ++p) local[n][p] = sums[n][p];
  }
  for (int64_t group = 0; group < groups; ++group, x += rows) {
    prefetch(blocks + ahead, parts * Block::bytes);
    Block both[] = {Block(blocks), Block(blocks + (parts - 1) * Block::bytes)};
    __m256i dots[rows][parts];
    for (int n = 0; n < rows; ++n) {
      for (int p = 0; p < parts; ++p) dots[n][p] = _mm256_setzero_si256();
    }
    for (int i = 3; i >= 0; --i) {
      for (int p = 0; p < parts; ++p) {
        __m256i weights[2];
        both[p].pair(i, weights);
        for (int n = 0; n < rows; ++n) dots[n][p] = both[p].add(dots[n][p], i, weights, x[n]);
      }
    }
    for (int p = 0; p < parts; ++p, blocks += Block::bytes) {
      const __m256 scales = Block::scales(blocks);
      for (int n = 0; n < rows; ++n) local[n][p] = add_group(local[n][p], dots[n][p], scales, x[n]);
    }
  }
  for (int n = 0; n < rows; ++n) {
    for (int p = 0; p < parts; ++p) sums[n][p] = local[n][p];
  }
}

template <class Block, int parts>
void add_tile(const uint8_t* blocks, int64_t ahead, int64_t groups, const CodeGroup* x,
              int64_t rows, __m256 (*sums)[parts]) {
  if (rows == 1) return add_tile<Block, parts, 1>(blocks, ahead, groups, x, sums);
  if (rows == 2) return add_tile<Block, parts, 2>(blocks, ahead, groups, x, sums);
  for (int64_t group = 0; group < groups; ++group, x += rows) {
    prefetch(blocks + ahead, parts * Block::bytes);
    for (int p = 0; p < parts; ++p, blocks += Block::bytes) {
      Block block(blocks);
      __m256i weights[8];
      for (int i = 3; i >= 0; --i) block.pair(i, weights + 2 * i);
      const __m256 scales = Block::scales(blocks);
      for (int64_t n = 0; n < rows; ++n) {
        __m256i dot = _mm256_setzero_si256();
        for (int i = 0; i < 4; ++i) dot = block.add(dot, i, weights + 2 * i, x[n]);
        sums[n][p] = add_group(sums[n][p], dot, scales, x[n]);
      }
    }
  }
}

template <class Block, int parts>
void store_tile(const float* row_scales, const __m256 (&sums)[parts], float* y, int64_t outputs) {
  __m256 value = sums[0], up = sums[parts - 1];
  if (Block::has_row_scales) {
    value = _mm256_mul_ps(load(row_scales), value);
    if (parts == 2) up = _mm256_mul_ps(load(row_scales + tile_rows), up);
  }
  if (parts == 2) value = _mm256_mul_ps(silu(value), up);
  if (outputs >= tile_rows) _mm256_storeu_ps(y, value);
  if (outputs < tile_rows) store(y, value, outputs);
}

template <class Block, int parts>
void multiply(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
              int64_t end) {
  DCHECK(begin % tile_rows == 0);
  DCHECK(w.columns == x.columns);
  const int64_t groups = padded_columns(w.columns) / group_columns;
  const int64_t block_stride = parts * Block::bytes, tile_stride = groups * block_stride;
  const auto* row_scales = reinterpret_cast<const float*>(w.data);
  const uint8_t* blocks = w.data + (Block::has_row_scales ? padded_rows(w.rows) * parts * 4 : 0);
  CodeGroup panel[panel_entries];
  __m256 sums[sum_entries / parts][parts];
  for (int64_t row = 0; row < x.row_count; row += panel_rows) {
    const int64_t rows = at_most(x.row_count - row, panel_rows);
    const int64_t stretch = at_most(groups, panel_entries / rows);
    const int64_t ahead = stretch == groups ? prefetch_bytes : tile_stride;
    const int64_t outputs_at_once = sum_entries / parts / rows * tile_rows;
    for (int64_t first = begin; first < end; first += outputs_at_once) {
      const int64_t last = at_most(end, first + outputs_at_once);
      for (int64_t i = 0; i < (last - first + tile_rows - 1) / tile_rows * rows; ++i) {
        for (int p = 0; p < parts; ++p) sums[i][p] = _mm256_setzero_ps();
      }
      for (int64_t group = 0; group < groups; group += stretch) {
        const int64_t now = at_most(groups - group, stretch);
        if (first == begin || stretch < groups) pack(x, row, rows, group, now, panel);
        for (int64_t r = first; r < last; r += tile_rows) {
          add_tile<Block, parts>(blocks + r / tile_rows * tile_stride + group * block_stride, ahead,
                                 now, panel, rows, sums + (r - first) / tile_rows * rows);
        }
      }
      for (int64_t n = 0; n < rows; ++n) {  // a row at a time: rows are pages apart
        for (int64_t r = first; r < last; r += tile_rows) {
          store_tile<Block, parts>(row_scales + r * parts, sums[(r - first) / tile_rows * rows + n],
                                   y + (row + n) * y_stride + r, last - r);
        }
      }
    }
  }
}

}  // namespace

void matmul_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
               int64_t end) {
  multiply<Q8, 1>(w, x, y, y_stride, begin, end);
}
void matmul_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  multiply<Nl5, 1>(w, x, y, y_stride, begin, end);
}
void matmul_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  multiply<Nl4, 1>(w, x, y, y_stride, begin, end);
}

void gate_up_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  multiply<Q8, 2>(w, x, y, y_stride, begin, end);
}
void gate_up_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  multiply<Nl5, 2>(w, x, y, y_stride, begin, end);
}
void gate_up_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  multiply<Nl4, 2>(w, x, y, y_stride, begin, end);
}

}  // namespace glmd::avx2
