// Quantised matrices: 8 rows lie interleaved, so one 32-byte vector of weights meets four
// activations of each of its rows, each 32-bit lane is a row of the matrix, and nothing is summed
// across lanes.
//
// nl4, nl5: table entries are looked up with 64 added, which makes them unsigned; vpmaddubsw
// multiplies them with signed codes (127 x 127 x 2 fits 16 bits). Two such products are added
// before they are widened: their sum may wrap, but it starts at what takes the 64 off again, and
// the true sum of four products fits (63 x 127 x 4), so it comes out right. q8: |weight| times the
// activation with the weight's sign, which allows no such sum.
//
// A group of one tile is unpacked into registers and meets all rows of activations before the next
// group: no weight is written back, and any number of rows runs through the same loop. Activations
// come from a panel, which many tiles share; float sums wait in a cache.
#include "kernels/avx2/blocks.h"
#include "kernels/avx2/kernels.h"
#include "kernels/avx2/panel.h"
#include "platform/check.h"

#include <type_traits>

namespace glmd::avx2 {
namespace {

constexpr int64_t sum_entries = 4096;  // 128 KiB of sums, of 8 outputs each

__m256 add_group(__m256 sum, __m256i dot, __m256 scales, const CodeGroup& x) {
  const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(x.scale));
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
}

void prefetch(const uint8_t* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + line, _MM_HINT_T0);
  }
}

// Hides where a block comes from: signs of q8 are operands in memory, but left alone GCC loads them
// before the loop, has no registers for them and puts them on the stack.
const uint8_t* loaded_anew(const uint8_t* block) {
  asm("" : "+r"(block));
  return block;
}

// ---- A tile (parts = 1), or one of gate and one of up in turn (parts = 2), against the panel.

// One or two rows: each pair of vectors is used as it is unpacked, gate and up share broadcasts,
// and sums stay in registers.
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
        const Block again(loaded_anew(blocks));
        __m256i dot = _mm256_setzero_si256();
        for (int i = 0; i < 4; ++i) dot = again.add(dot, i, weights + 2 * i, x[n]);
        sums[n][p] = add_group(sums[n][p], dot, scales, x[n]);
      }
    }
  }
}

// ---- Many rows: each step of the loops takes two of them.

// Keeps what stands before it before what stands behind it: left alone, GCC takes so much of the
// next rows ahead that it runs out of registers.
void keep_order() {
  asm volatile("" ::: "memory");
}

// step(integral_constant of 2 or 1 rows, first row). Always inlined, as is what it calls: weights
// that a call refers to would lie in memory.
template <class Step>
[[gnu::always_inline]] inline void for_rows(int64_t rows, const Step& step) {
  int64_t n = 0;
  for (; n + 4 <= rows; n += 4) {
    step(std::integral_constant<int, 2>{}, n);
    step(std::integral_constant<int, 2>{}, n + 2);
  }
  for (; n < rows; ++n) step(std::integral_constant<int, 1>{}, n);
}

template <int rows, int parts, class Group>
[[gnu::always_inline]] inline void add_groups(__m256 (*sums)[parts], int part, const __m256i* dots,
                                              __m256 scales, const Group* x) {
  __m256 products[rows], values[rows];
  for (int n = 0; n < rows; ++n) products[n] = _mm256_mul_ps(scales, _mm256_set1_ps(x[n].scale));
  for (int n = 0; n < rows; ++n) values[n] = _mm256_cvtepi32_ps(dots[n]);
  for (int n = 0; n < rows; ++n) {
    sums[n][part] = _mm256_fmadd_ps(values[n], products[n], sums[n][part]);
  }
}

// Weights that are used whole.
template <class Block, int parts>
void add_block(const uint8_t* block, const OffsetRingGroup* x, int64_t rows, int part,
               __m256 (*sums)[parts]) {
  __m256i weights[8];
  Block::turned(block, weights);
  const __m256 scales = Block::scales(block);
  for_rows(
      rows, [&](auto count, int64_t n) __attribute__((always_inline)) {
        __m256i dots[count];
        Block::template ring_dots<count>(weights, x + n, dots);
        add_groups<count, parts>(sums + n, part, dots, scales, x + n);
        keep_order();
      });
}

// Magnitudes and signs: half a group at a time, since there are not registers for more.
template <class Block, int parts>
void add_block(const uint8_t* block, const RingGroup* x, int64_t rows, int part,
               __m256 (*sums)[parts]) {
  __m256i weights[8], all_dots[panel_rows];
  Block::turned(block, weights);
  for (int j = 4; j < 8; ++j) asm("" : "+m"(weights[j]));  // wait there for the second half
  const __m256i start = Block::ring_start(block);
  __m256i magnitudes[4], signs[4];
  split(weights, magnitudes, signs);
  for_rows(
      rows, [&](auto count, int64_t n) __attribute__((always_inline)) {
        __m256i dots[count];
        for (int i = 0; i < count; ++i) dots[i] = start;
        Block::template add_ring_dots<count>(magnitudes, signs, 0, x + n, dots);
        for (int i = 0; i < count; ++i) all_dots[n + i] = dots[i];
        keep_order();
      });
  __m256i magnitudes_2[4], signs_2[4];
  split(weights + 4, magnitudes_2, signs_2);
  const __m256 scales = Block::scales(block);
  for_rows(
      rows, [&](auto count, int64_t n) __attribute__((always_inline)) {
        __m256i dots[count];
        for (int i = 0; i < count; ++i) dots[i] = all_dots[n + i];
        Block::template add_ring_dots<count>(magnitudes_2, signs_2, 4, x + n, dots);
        add_groups<count, parts>(sums + n, part, dots, scales, x + n);
        keep_order();
      });
}

template <class Block, int parts>
void add_tile(const uint8_t* blocks, int64_t ahead, int64_t groups, const typename Block::Ring* x,
              int64_t rows, __m256 (*sums)[parts]) {
  for (int64_t group = 0; group < groups; ++group, x += rows) {
    prefetch(blocks + ahead, parts * Block::bytes);
    for (int p = 0; p < parts; ++p, blocks += Block::bytes) {
      add_block<Block, parts>(blocks, x, rows, p, sums);
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

// Rows [row, row + rows) of the activations, at most panel_rows.
template <class Block, int parts, class Group>
void multiply_panel(const Matrix& w, const Activations& x, int64_t row, int64_t rows, float* y,
                    int64_t y_stride, int64_t begin, int64_t end) {
  const int64_t groups = padded_columns(w.columns) / group_columns;
  const int64_t block_stride = parts * Block::bytes, tile_stride = groups * block_stride;
  const auto* row_scales = reinterpret_cast<const float*>(w.data);
  const uint8_t* blocks = w.data + (Block::has_row_scales ? padded_rows(w.rows) * parts * 4 : 0);
  Group panel[Group::panel_entries];
  __m256 sums[sum_entries / parts][parts];
  const int64_t stretch = at_most(groups, Group::panel_entries / rows);
  const int64_t ahead = stretch == groups ? Block::prefetch_bytes : tile_stride;
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

template <class Block, int parts>
void multiply(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
              int64_t end) {
  DCHECK(begin % tile_rows == 0);
  DCHECK(w.columns == x.columns);
  for (int64_t row = 0; row < x.row_count; row += panel_rows) {
    const int64_t rows = at_most(x.row_count - row, panel_rows);
    if (rows < Block::many_rows) {
      multiply_panel<Block, parts, CodeGroup>(w, x, row, rows, y, y_stride, begin, end);
    } else {
      multiply_panel<Block, parts, typename Block::Ring>(w, x, row, rows, y, y_stride, begin, end);
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
