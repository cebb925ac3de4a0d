// Quantised matrices: 8 rows lie interleaved, so one 32-byte vector of weights meets 4 broadcast
// activations, each 32-bit lane is a row of the matrix, and nothing is summed across lanes.
//
// nl4, nl5: table entries are looked up with 64 added, which makes them unsigned; vpmaddubsw
// multiplies them with signed codes (121 x 127 x 2 and 127 x 127 x 2 fit 16 bits, one sum only),
// and 64 x (sum of the codes) comes off at the end. q8: |weight| times the activation with the
// weight's sign, exact because neither is ever -128.
//
// Up to 8 rows of activations read the packed blocks directly, 4 rows at a time. More rows unpack a
// stretch of groups into a buffer that stays in the first cache and pass over it 4 rows at a time.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx2/kernels.h"
#include "platform/check.h"

namespace glmd::avx2 {
namespace {

constexpr int64_t prefetch_bytes = 6144;
constexpr int group_vectors = 8;     // 32-byte vectors of weights in a group
constexpr int64_t rows_at_once = 4;  // of activations
constexpr int64_t direct_rows = 8;   // up to here without unpacking
constexpr int64_t stretch_groups = 16;
constexpr int64_t stretch_rows = 64;  // whose sums are kept while a stretch is unpacked

__m256i load_vector(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

__m256i broadcast_4(const int8_t* codes) {
  int32_t four;
  memcpy(&four, codes, 4);
  return _mm256_set1_epi32(four);
}

// Pins the sum where it is: left alone, GCC keeps all products of a group and adds them up as a
// tree, which takes more registers than there are.
__m256i add_pairs(__m256i sum, __m256i products) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
  asm("" : "+x"(sum));
  return sum;
}

__m256i entry_table(const int8_t* entries) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries));
  return _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(64)));
}

// A scale byte m | sign << 7 as +-m.
__m256 nl_scales(const uint8_t* block) {
  const __m256i bytes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block)));
  const __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi32(127));
  return _mm256_cvtepi32_ps(_mm256_sign_epi32(magnitudes, _mm256_slli_epi32(bytes, 24)));
}

// Products of offset entries, and what takes the offset off again.
struct OffsetProduct {
  static __m256i add(__m256i sum, __m256i weights, __m256i codes) {
    return add_pairs(sum, _mm256_maddubs_epi16(weights, codes));
  }
  static __m256i finish(__m256i sum, const int32_t* code_sum) {
    return _mm256_sub_epi32(sum, _mm256_slli_epi32(_mm256_set1_epi32(*code_sum), 6));
  }
};

struct SignedProduct {
  static __m256i add(__m256i sum, __m256i weights, __m256i codes) {
    return add_pairs(
        sum, _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights)));
  }
  static __m256i finish(__m256i sum, const int32_t*) { return sum; }
};

struct Nl4 : OffsetProduct {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl4);
  static constexpr bool has_row_scales = true;
  static __m256 scales(const uint8_t* block) { return nl_scales(block); }

  explicit Nl4(const uint8_t* block) : nibbles_(block + 8) {}
  void pair(int index, __m256i* weights) const {
    const __m256i table = entry_table(nl4_table), mask = _mm256_set1_epi8(15);
    const __m256i nibbles = load_vector(nibbles_ + 32 * index);
    weights[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(nibbles, mask));
    weights[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask));
  }

 private:
  const uint8_t* nibbles_;
};

struct Nl5 : OffsetProduct {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl5);
  static constexpr bool has_row_scales = true;
  static __m256 scales(const uint8_t* block) { return nl_scales(block); }

  explicit Nl5(const uint8_t* block) : nibbles_(block + 8), fifth_bits_(load_vector(block + 136)) {}
  void pair(int index, __m256i* weights) const {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i nibbles = load_vector(nibbles_ + 32 * index);
    weights[0] = look_up(_mm256_and_si256(nibbles, mask), 2 * index);
    weights[1] = look_up(_mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask), 2 * index + 1);
  }

 private:
  // The fifth bit, shifted to the top of its byte, chooses between the halves of the table.
  __m256i look_up(__m256i low_bits, int vector) const {
    const __m256i chosen = _mm256_sll_epi16(fifth_bits_, _mm_cvtsi32_si128(7 - vector));
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(entry_table(nl5_table), low_bits),
                              _mm256_shuffle_epi8(entry_table(nl5_table + 16), low_bits), chosen);
  }

  const uint8_t* nibbles_;
  __m256i fifth_bits_;
};

struct Q8 : SignedProduct {
  static constexpr int64_t bytes = block_bytes(BlockFormat::q8);
  static constexpr bool has_row_scales = false;
  static __m256 scales(const uint8_t* block) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
  }

  explicit Q8(const uint8_t* block) : codes_(block + 16) {}
  void pair(int index, __m256i* weights) const {
    weights[0] = load_vector(codes_ + 64 * index);
    weights[1] = load_vector(codes_ + 64 * index + 32);
  }

 private:
  const uint8_t* codes_;
};

// A block after unpacking, for many rows.
template <class Packed>
struct Unpacked : Packed {
  static constexpr int64_t bytes = 32 * group_vectors + 32;
  static __m256 scales(const uint8_t* block) { return load(reinterpret_cast<const float*>(block)); }

  explicit Unpacked(const uint8_t* block) : Packed(block), vectors_(block + 32) {}
  void pair(int index, __m256i* weights) const {
    weights[0] = load_vector(vectors_ + 64 * index);
    weights[1] = load_vector(vectors_ + 64 * index + 32);
  }
  static void unpack(const uint8_t* from, uint8_t* to) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), Packed::scales(from));
    const Packed packed(from);
    for (int i = 0; i < group_vectors / 2; ++i) {
      __m256i weights[2];
      packed.pair(i, weights);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 + 64 * i), weights[0]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 + 64 * i + 32), weights[1]);
    }
  }

 private:
  const uint8_t* vectors_;
};

// Rows of activations from one group on.
struct CodeRows {
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
  int64_t groups;  // of a whole row: the distance between rows
};

CodeRows rows_from(const Activations& x, int64_t row, int64_t group) {
  const int64_t groups = padded_columns(x.columns) / group_columns;
  const int64_t first = row * groups + group;
  return {x.codes + first * group_columns, x.scales + first, x.sums + first, groups};
}

template <class Block, int rows>
inline void add_block(const uint8_t* bytes, const CodeRows& x, int64_t group, __m256* sums) {
  const Block block(bytes);
  __m256i dots[rows];
  for (int n = 0; n < rows; ++n) dots[n] = _mm256_setzero_si256();
  for (int i = 0; i < group_vectors / 2; ++i) {
    __m256i weights[2];
    block.pair(i, weights);
    for (int n = 0; n < rows; ++n) {
      const int8_t* codes = x.codes + (n * x.groups + group) * group_columns + 8 * i;
      dots[n] = Block::add(dots[n], weights[0], broadcast_4(codes));
      dots[n] = Block::add(dots[n], weights[1], broadcast_4(codes + 4));
    }
  }
  const __m256 scales = Block::scales(bytes);
  for (int n = 0; n < rows; ++n) {
    const int64_t index = n * x.groups + group;
    const __m256i dot = Block::finish(dots[n], x.sums + index);
    const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(x.scales[index]));
    sums[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[n]);
  }
}

// Adds `groups` groups of `parts` interleaved tiles (1, or gate and up) to sums[part][row].
template <class Block, int parts, int rows>
void add_groups(const uint8_t* blocks, int64_t groups, const CodeRows& x, __m256* sums,
                int64_t part_stride) {
  __m256 local[parts][rows];
  for (int p = 0; p < parts; ++p) {
    for (int n = 0; n < rows; ++n) local[p][n] = sums[p * part_stride + n];
  }
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t ahead = 0; ahead < parts * Block::bytes; ahead += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(blocks) + prefetch_bytes + ahead, _MM_HINT_T0);
    }
    for (int p = 0; p < parts; ++p, blocks += Block::bytes)
      add_block<Block, rows>(blocks, x, group, local[p]);
  }
  for (int p = 0; p < parts; ++p) {
    for (int n = 0; n < rows; ++n) sums[p * part_stride + n] = local[p][n];
  }
}

template <class Block, int parts>
void add_groups(const uint8_t* blocks, int64_t groups, const CodeRows& x, int64_t rows,
                __m256* sums, int64_t part_stride) {
  DCHECK(rows >= 1 && rows <= rows_at_once);
  if (rows == 1) add_groups<Block, parts, 1>(blocks, groups, x, sums, part_stride);
  if (rows == 2) add_groups<Block, parts, 2>(blocks, groups, x, sums, part_stride);
  if (rows == 3) add_groups<Block, parts, 3>(blocks, groups, x, sums, part_stride);
  if (rows == 4) add_groups<Block, parts, 4>(blocks, groups, x, sums, part_stride);
}

template <class Block, int parts>
void add_tile_direct(const uint8_t* blocks, int64_t groups, const Activations& x, int64_t first,
                     int64_t rows, __m256* sums) {
  for (int64_t n = 0; n < rows; n += rows_at_once) {
    const int64_t now = rows - n < rows_at_once ? rows - n : rows_at_once;
    add_groups<Block, parts>(blocks, groups, rows_from(x, first + n, 0), now, sums + n,
                             stretch_rows);
  }
}

template <class Block, int parts>
void add_tile_unpacked(const uint8_t* blocks, int64_t groups, const Activations& x, int64_t first,
                       int64_t rows, __m256* sums) {
  using Ready = Unpacked<Block>;
  alignas(64) uint8_t buffer[stretch_groups * parts * Ready::bytes];
  for (int64_t group = 0; group < groups; group += stretch_groups) {
    const int64_t now = groups - group < stretch_groups ? groups - group : stretch_groups;
    for (int64_t i = 0; i < now * parts; ++i, blocks += Block::bytes) {
      Ready::unpack(blocks, buffer + i * Ready::bytes);
    }
    for (int64_t n = 0; n < rows; n += rows_at_once) {
      const int64_t count = rows - n < rows_at_once ? rows - n : rows_at_once;
      add_groups<Ready, parts>(buffer, now, rows_from(x, first + n, group), count, sums + n,
                               stretch_rows);
    }
  }
}

// One tile of one matrix (parts = 1) or of gate and up (parts = 2), for rows [first, first + rows).
template <class Block, int parts>
void multiply_tile(const uint8_t* blocks, const float* row_scales, const Activations& x,
                   int64_t first, int64_t rows, float* y, int64_t y_stride, int64_t outputs) {
  const int64_t groups = padded_columns(x.columns) / group_columns;
  __m256 sums[parts * stretch_rows];
  for (int p = 0; p < parts; ++p) {
    for (int64_t n = 0; n < rows; ++n) sums[p * stretch_rows + n] = _mm256_setzero_ps();
  }
  if (rows <= direct_rows) add_tile_direct<Block, parts>(blocks, groups, x, first, rows, sums);
  if (rows > direct_rows) add_tile_unpacked<Block, parts>(blocks, groups, x, first, rows, sums);

  for (int64_t n = 0; n < rows; ++n) {
    __m256 value = sums[n];
    if (Block::has_row_scales) value = _mm256_mul_ps(load(row_scales), value);
    if (parts == 2) {
      __m256 up = sums[(parts - 1) * stretch_rows + n];
      if (Block::has_row_scales) up = _mm256_mul_ps(load(row_scales + tile_rows), up);
      value = _mm256_mul_ps(silu(value), up);
    }
    float* to = y + (first + n) * y_stride;
    if (outputs == tile_rows) _mm256_storeu_ps(to, value);
    if (outputs < tile_rows) store(to, value, outputs);
  }
}

template <class Block, int parts>
void quantised_matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride,
                      int64_t begin, int64_t end) {
  DCHECK(begin % tile_rows == 0);
  DCHECK(w.columns == x.columns);
  const int64_t tile_bytes = padded_columns(w.columns) / group_columns * parts * Block::bytes;
  const auto* row_scales = reinterpret_cast<const float*>(w.data);
  const uint8_t* blocks = w.data + (Block::has_row_scales ? padded_rows(w.rows) * parts * 4 : 0);
  for (int64_t r = begin; r < end; r += tile_rows) {
    const int64_t outputs = end - r < tile_rows ? end - r : tile_rows;
    for (int64_t first = 0; first < x.row_count; first += stretch_rows) {
      const int64_t rows = x.row_count - first < stretch_rows ? x.row_count - first : stretch_rows;
      multiply_tile<Block, parts>(blocks + r / tile_rows * tile_bytes, row_scales + r * parts, x,
                                  first, rows, y + r, y_stride, outputs);
    }
  }
}

// ---- Float formats: 4 rows of the matrix at a time share the activations.

template <class Element, int rows>
void float_dots(const Element* const* weights, const float* x, int64_t n, float* dots) {
  Lanes sums[rows];
  for (int r = 0; r < rows; ++r) sums[r] = zero_lanes();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes values = load_16(x + i);
    for (int r = 0; r < rows; ++r) multiply_add(sums[r], load_16(weights[r] + i), values);
  }
  if (i < n) {
    const Lanes values = load_16(x + i, n - i);
    for (int r = 0; r < rows; ++r) {
      const Lanes before = sums[r];
      multiply_add(sums[r], load_16(weights[r] + i, n - i), values);
      keep_behind(sums[r], before, n - i);
    }
  }
  for (int r = 0; r < rows; ++r) dots[r] = sum_lanes(sums[r]);
}

template <class Element>
void float_matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end) {
  const auto* weights = reinterpret_cast<const Element*>(w.data);
  int64_t r = begin;
  for (; r + 4 <= end; r += 4) {
    const Element* four[4];
    for (int i = 0; i < 4; ++i) four[i] = weights + (r + i) * w.columns;
    for (int64_t n = 0; n < x.row_count; ++n) {
      float_dots<Element, 4>(four, x.values + n * x.value_stride, w.columns, y + n * y_stride + r);
    }
  }
  for (; r < end; ++r) {
    const Element* one = weights + r * w.columns;
    for (int64_t n = 0; n < x.row_count; ++n) {
      float_dots<Element, 1>(&one, x.values + n * x.value_stride, w.columns, y + n * y_stride + r);
    }
  }
}

template <class Element>
void float_gate_up(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                   int64_t end) {
  const auto* gates = reinterpret_cast<const Element*>(w.data);
  for (int64_t r = begin; r < end; ++r) {
    const Element* two[2] = {gates + r * w.columns, gates + (w.rows + r) * w.columns};
    for (int64_t n = 0; n < x.row_count; ++n) {
      float dots[2];
      float_dots<Element, 2>(two, x.values + n * x.value_stride, w.columns, dots);
      y[n * y_stride + r] = _mm256_cvtss_f32(silu(_mm256_set1_ps(dots[0]))) * dots[1];
    }
  }
}

template <class Element>
void copy_row(const uint8_t* row, int64_t columns, float* out) {
  const auto* elements = reinterpret_cast<const Element*>(row);
  int64_t i = 0;
  for (; i + 8 <= columns; i += 8) _mm256_storeu_ps(out + i, load(elements + i));
  if (i < columns) store(out + i, load(elements + i, columns - i), columns - i);
}

}  // namespace

void matmul_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  float_matmul<float>(w, x, y, y_stride, begin, end);
}
void matmul_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  float_matmul<Half>(w, x, y, y_stride, begin, end);
}
void matmul_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  float_matmul<Brain>(w, x, y, y_stride, begin, end);
}
void matmul_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
               int64_t end) {
  quantised_matmul<Q8, 1>(w, x, y, y_stride, begin, end);
}
void matmul_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  quantised_matmul<Nl5, 1>(w, x, y, y_stride, begin, end);
}
void matmul_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  quantised_matmul<Nl4, 1>(w, x, y, y_stride, begin, end);
}

void gate_up_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  float_gate_up<float>(w, x, y, y_stride, begin, end);
}
void gate_up_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  float_gate_up<Half>(w, x, y, y_stride, begin, end);
}
void gate_up_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end) {
  float_gate_up<Brain>(w, x, y, y_stride, begin, end);
}
void gate_up_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  quantised_matmul<Q8, 2>(w, x, y, y_stride, begin, end);
}
void gate_up_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  quantised_matmul<Nl5, 2>(w, x, y, y_stride, begin, end);
}
void gate_up_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  quantised_matmul<Nl4, 2>(w, x, y, y_stride, begin, end);
}

void embedding_row_f32(const uint8_t* row, int64_t columns, float* out) {
  copy_row<float>(row, columns, out);
}
void embedding_row_f16(const uint8_t* row, int64_t columns, float* out) {
  copy_row<Half>(row, columns, out);
}
void embedding_row_bf16(const uint8_t* row, int64_t columns, float* out) {
  copy_row<Brain>(row, columns, out);
}

void embedding_row_q8(const uint8_t* row, int64_t columns, float* out) {
  for (int64_t first = 0; first < columns; first += group_columns, row += 2 + group_columns) {
    uint16_t half;
    memcpy(&half, row, 2);
    const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half)));
    for (int64_t i = 0; i < group_columns && first + i < columns; i += 8) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + 2 + i));
      const __m256 values = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)));
      store(out + first + i, values, columns - first - i);
    }
  }
}

}  // namespace glmd::avx2
