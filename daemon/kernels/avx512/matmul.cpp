// Quantised matrices with AVX-512 VNNI: vpdpbusd multiplies unsigned weights with signed codes and
// adds four products to a 32-bit lane, exactly. Weights are made unsigned by an offset (64, or 128
// for q8), which comes off again as a multiple of the sum of the codes.
//
// Up to 8 rows of activations: 256-bit registers, as a block lies in memory. More rows: a stretch
// of groups of two tiles (of gate and up: one tile of each) is unpacked, so that a register holds
// 16 rows x 4 columns.
//
// Lookups use vpermb, which reads 6 bits of an index: tables are repeated to 64 entries, so that
// the bits above an index need no mask.
#include "kernels/avx2/arithmetic.h"
#include "kernels/avx512/kernels.h"
#include "platform/check.h"

namespace glmd::avx512 {
namespace {

constexpr int64_t prefetch_bytes = 6144;
constexpr int64_t direct_rows = 8;  // of activations, up to here without unpacking
constexpr int64_t rows_at_once = 8;
constexpr int64_t stretch_groups = 16;
constexpr int64_t stretch_rows = 64;

int64_t at_most(int64_t n, int64_t most) {
  return n < most ? n : most;
}

__m256i load_vector(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

__m256 nl_scales(const uint8_t* block) {
  const __m256i bytes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block)));
  const __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi32(127));
  return _mm256_cvtepi32_ps(_mm256_sign_epi32(magnitudes, _mm256_slli_epi32(bytes, 24)));
}

// `pair(c, weights)`: columns 8c..8c+3 of the 8 rows, then 8c+4..8c+7.
struct Nl4 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl4);
  static constexpr bool has_row_scales = true;
  static constexpr int offset_bits = 6;
  static __m256 scales(const uint8_t* block) { return nl_scales(block); }

  explicit Nl4(const uint8_t* block) : nibbles_(block + 8) {}
  void pair(int index, __m256i* weights) const {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(nl4_table));
    const __m256i table = _mm256_broadcastsi128_si256(_mm_add_epi8(entries, _mm_set1_epi8(64)));
    const __m256i nibbles = load_vector(nibbles_ + 32 * index);
    weights[0] = _mm256_permutexvar_epi8(nibbles, table);
    weights[1] = _mm256_permutexvar_epi8(_mm256_srli_epi16(nibbles, 4), table);
  }

 private:
  const uint8_t* nibbles_;
};

struct Nl5 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl5);
  static constexpr bool has_row_scales = true;
  static constexpr int offset_bits = 6;
  static __m256 scales(const uint8_t* block) { return nl_scales(block); }

  explicit Nl5(const uint8_t* block) : nibbles_(block + 8), fifth_bits_(load_vector(block + 136)) {}
  void pair(int index, __m256i* weights) const {
    const __m256i nibbles = load_vector(nibbles_ + 32 * index);
    weights[0] = look_up(nibbles, 2 * index);
    weights[1] = look_up(_mm256_srli_epi16(nibbles, 4), 2 * index + 1);
  }

 private:
  // Bit `vector` of each byte moves to bit 4, above the low bits; what stands higher is not read.
  __m256i look_up(__m256i low_bits, int vector) const {
    const __m256i table = _mm256_add_epi8(load_vector(reinterpret_cast<const uint8_t*>(nl5_table)),
                                          _mm256_set1_epi8(64));
    const __m256i fifth = _mm256_rolv_epi32(fifth_bits_, _mm256_set1_epi32(4 - vector));
    constexpr int select = 0xca;  // first ? second : third
    return _mm256_permutexvar_epi8(
        _mm256_ternarylogic_epi64(_mm256_set1_epi8(15), low_bits, fifth, select), table);
  }

  const uint8_t* nibbles_;
  __m256i fifth_bits_;
};

struct Q8 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::q8);
  static constexpr bool has_row_scales = false;
  static constexpr int offset_bits = 7;
  static __m256 scales(const uint8_t* block) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
  }

  explicit Q8(const uint8_t* block) : codes_(block + 16) {}
  void pair(int index, __m256i* weights) const {
    weights[0] = _mm256_xor_si256(load_vector(codes_ + 64 * index), _mm256_set1_epi8(-128));
    weights[1] = _mm256_xor_si256(load_vector(codes_ + 64 * index + 32), _mm256_set1_epi8(-128));
  }

 private:
  const uint8_t* codes_;
};

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

int32_t load_4(const int8_t* codes) {
  int32_t four;
  memcpy(&four, codes, 4);
  return four;
}

// Pins a sum where it is, as in avx2/matmul.cpp.
__m256i multiply_add(__m256i sum, __m256i weights, __m256i codes) {
  sum = _mm256_dpbusd_epi32(sum, weights, codes);
  asm("" : "+v"(sum));
  return sum;
}
__m512i multiply_add(__m512i sum, __m512i weights, __m512i codes) {
  sum = _mm512_dpbusd_epi32(sum, weights, codes);
  asm("" : "+v"(sum));
  return sum;
}

// ---- Few rows: straight from packed blocks.

template <class Block, int rows>
inline void add_block(const uint8_t* bytes, const CodeRows& x, int64_t group, __m256* sums) {
  const Block block(bytes);
  __m256i dots[rows];
  for (int n = 0; n < rows; ++n) dots[n] = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    __m256i weights[2];
    block.pair(i, weights);
    for (int n = 0; n < rows; ++n) {
      const int8_t* codes = x.codes + (n * x.groups + group) * group_columns + 8 * i;
      dots[n] = multiply_add(dots[n], weights[0], _mm256_set1_epi32(load_4(codes)));
      dots[n] = multiply_add(dots[n], weights[1], _mm256_set1_epi32(load_4(codes + 4)));
    }
  }
  const __m256 scales = Block::scales(bytes);
  for (int n = 0; n < rows; ++n) {
    const int64_t index = n * x.groups + group;
    const __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(x.sums[index]), Block::offset_bits);
    const __m256i dot = _mm256_sub_epi32(dots[n], offset);
    const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(x.scales[index]));
    sums[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[n]);
  }
}

template <class Block, int parts, int rows>
void add_tile(const uint8_t* blocks, const CodeRows& x, __m256 (*sums)[direct_rows]) {
  __m256 local[parts][rows];
  for (int p = 0; p < parts; ++p) {
    for (int n = 0; n < rows; ++n) local[p][n] = _mm256_setzero_ps();
  }
  for (int64_t group = 0; group < x.groups; ++group) {
    for (int64_t ahead = 0; ahead < parts * Block::bytes; ahead += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(blocks) + prefetch_bytes + ahead, _MM_HINT_T0);
    }
    for (int p = 0; p < parts; ++p, blocks += Block::bytes)
      add_block<Block, rows>(blocks, x, group, local[p]);
  }
  for (int p = 0; p < parts; ++p) {
    for (int n = 0; n < rows; ++n) sums[p][n] = local[p][n];
  }
}

// Sums of one part to its values: times the row scales, where there are any.
template <class Block>
__m256 scaled(__m256 sum, const float* row_scales) {
  return Block::has_row_scales ? _mm256_mul_ps(avx2::load(row_scales), sum) : sum;
}

void store_outputs(float* to, __m256 value, int64_t outputs) {
  if (outputs == tile_rows) _mm256_storeu_ps(to, value);
  if (outputs < tile_rows) avx2::store(to, value, outputs);
}

template <class Block, int parts>
void multiply_few(const uint8_t* blocks, const float* row_scales, const Activations& x, float* y,
                  int64_t y_stride, int64_t outputs) {
  DCHECK(x.row_count <= direct_rows);
  const CodeRows rows = rows_from(x, 0, 0);
  __m256 sums[parts][direct_rows];
  if (x.row_count == 1) add_tile<Block, parts, 1>(blocks, rows, sums);
  if (x.row_count == 2) add_tile<Block, parts, 2>(blocks, rows, sums);
  if (x.row_count == 3) add_tile<Block, parts, 3>(blocks, rows, sums);
  if (x.row_count == 4) add_tile<Block, parts, 4>(blocks, rows, sums);
  if (x.row_count == 5) add_tile<Block, parts, 5>(blocks, rows, sums);
  if (x.row_count == 6) add_tile<Block, parts, 6>(blocks, rows, sums);
  if (x.row_count == 7) add_tile<Block, parts, 7>(blocks, rows, sums);
  if (x.row_count == 8) add_tile<Block, parts, 8>(blocks, rows, sums);
  for (int64_t n = 0; n < x.row_count; ++n) {
    __m256 value = scaled<Block>(sums[0][n], row_scales);
    if (parts == 2) {
      value = _mm256_mul_ps(avx2::silu(value),
                            scaled<Block>(sums[parts - 1][n], row_scales + tile_rows));
    }
    store_outputs(y + n * y_stride, value, outputs);
  }
}

// ---- Many rows: 16 rows of weights at a time, unpacked.

struct alignas(64) UnpackedGroup {
  float scales[16];
  uint8_t vectors[8][64];  // 4 columns each
};

template <class Block>
void unpack(const uint8_t* first, const uint8_t* second, UnpackedGroup* to) {
  _mm256_store_ps(to->scales, Block::scales(first));
  _mm256_store_ps(to->scales + 8, Block::scales(second));
  const Block one(first), two(second);
  for (int i = 0; i < 4; ++i) {
    __m256i a[2], b[2];
    one.pair(i, a);
    two.pair(i, b);
    for (int j = 0; j < 2; ++j) {
      _mm512_store_si512(to->vectors[2 * i + j],
                         _mm512_inserti64x4(_mm512_castsi256_si512(a[j]), b[j], 1));
    }
  }
}

template <int offset_bits, int rows>
void add_stretch(const UnpackedGroup* unpacked, int64_t groups, const CodeRows& x, __m512* sums) {
  __m512 local[rows];
  for (int n = 0; n < rows; ++n) local[n] = sums[n];
  for (int64_t group = 0; group < groups; ++group, ++unpacked) {
    __m512i dots[rows];
    for (int n = 0; n < rows; ++n) dots[n] = _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
      const __m512i weights = _mm512_load_si512(unpacked->vectors[i]);
      for (int n = 0; n < rows; ++n) {
        const int32_t codes = load_4(x.codes + (n * x.groups + group) * group_columns + 4 * i);
        dots[n] = multiply_add(dots[n], weights, _mm512_set1_epi32(codes));
      }
    }
    const __m512 scales = _mm512_load_ps(unpacked->scales);
    for (int n = 0; n < rows; ++n) {
      const int64_t index = n * x.groups + group;
      const __m512i offset = _mm512_slli_epi32(_mm512_set1_epi32(x.sums[index]), offset_bits);
      const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(x.scales[index]));
      local[n] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(dots[n], offset)), scale, local[n]);
    }
  }
  for (int n = 0; n < rows; ++n) sums[n] = local[n];
}

// Any number of rows: 8 at a time, then 4, 2, 1.
template <int offset_bits>
void add_stretch(const UnpackedGroup* unpacked, int64_t groups, const CodeRows& from, int64_t rows,
                 __m512* sums) {
  CodeRows x = from;
  const auto skip = [&](int64_t n) {
    x.codes += n * x.groups * group_columns;
    x.scales += n * x.groups;
    x.sums += n * x.groups;
    sums += n;
    rows -= n;
  };
  for (; rows >= 8; skip(8)) add_stretch<offset_bits, 8>(unpacked, groups, x, sums);
  if (rows >= 4) {
    add_stretch<offset_bits, 4>(unpacked, groups, x, sums);
    skip(4);
  }
  if (rows >= 2) {
    add_stretch<offset_bits, 2>(unpacked, groups, x, sums);
    skip(2);
  }
  if (rows >= 1) add_stretch<offset_bits, 1>(unpacked, groups, x, sums);
}

// Sums of rows [first_row, first_row + rows) with two tiles whose blocks lie `block_stride` apart
// each.
template <class Block>
void add_two_tiles(const uint8_t* first, const uint8_t* second, int64_t block_stride,
                   const Activations& x, int64_t first_row, int64_t rows, __m512* sums) {
  const int64_t groups = padded_columns(x.columns) / group_columns;
  UnpackedGroup unpacked[stretch_groups];
  for (int64_t n = 0; n < rows; ++n) sums[n] = _mm512_setzero_ps();
  for (int64_t group = 0; group < groups; group += stretch_groups) {
    const int64_t now = at_most(groups - group, stretch_groups);
    for (int64_t i = 0; i < now; ++i, first += block_stride, second += block_stride) {
      unpack<Block>(first, second, unpacked + i);
    }
    add_stretch<Block::offset_bits>(unpacked, now, rows_from(x, first_row, group), rows, sums);
  }
}

__m256 lower(__m512 value) {
  return _mm512_castps512_ps256(value);
}
__m256 upper(__m512 value) {
  return _mm512_extractf32x8_ps(value, 1);
}

template <class Block>
void matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
            int64_t end) {
  DCHECK(begin % tile_rows == 0);
  DCHECK(w.columns == x.columns);
  const int64_t tile_bytes = padded_columns(w.columns) / group_columns * Block::bytes;
  const auto* row_scales = reinterpret_cast<const float*>(w.data);
  const uint8_t* blocks = w.data + (Block::has_row_scales ? padded_rows(w.rows) * 4 : 0);
  if (x.row_count <= direct_rows) {
    for (int64_t r = begin; r < end; r += tile_rows) {
      multiply_few<Block, 1>(blocks + r / tile_rows * tile_bytes, row_scales + r, x, y + r,
                             y_stride, at_most(end - r, tile_rows));
    }
    return;
  }
  for (int64_t r = begin; r < end; r += 2 * tile_rows) {
    const uint8_t* first = blocks + r / tile_rows * tile_bytes;
    const int64_t second_outputs = end - r - tile_rows;  // none: the first tile stands in
    const uint8_t* second = second_outputs > 0 ? first + tile_bytes : first;
    for (int64_t row = 0; row < x.row_count; row += stretch_rows) {
      const int64_t rows = at_most(x.row_count - row, stretch_rows);
      __m512 sums[stretch_rows];
      add_two_tiles<Block>(first, second, Block::bytes, x, row, rows, sums);
      for (int64_t n = 0; n < rows; ++n) {
        float* to = y + (row + n) * y_stride + r;
        store_outputs(to, scaled<Block>(lower(sums[n]), row_scales + r),
                      at_most(end - r, tile_rows));
        if (second_outputs <= 0) continue;
        store_outputs(to + tile_rows, scaled<Block>(upper(sums[n]), row_scales + r + tile_rows),
                      at_most(second_outputs, tile_rows));
      }
    }
  }
}

template <class Block>
void gate_up(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
             int64_t end) {
  DCHECK(begin % tile_rows == 0);
  DCHECK(w.columns == x.columns);
  const int64_t tile_bytes = padded_columns(w.columns) / group_columns * 2 * Block::bytes;
  const auto* row_scales = reinterpret_cast<const float*>(w.data);
  const uint8_t* blocks = w.data + (Block::has_row_scales ? padded_rows(w.rows) * 2 * 4 : 0);
  for (int64_t r = begin; r < end; r += tile_rows) {
    const uint8_t* gate = blocks + r / tile_rows * tile_bytes;
    const int64_t outputs = at_most(end - r, tile_rows);
    if (x.row_count <= direct_rows) {
      multiply_few<Block, 2>(gate, row_scales + 2 * r, x, y + r, y_stride, outputs);
      continue;
    }
    for (int64_t row = 0; row < x.row_count; row += stretch_rows) {
      const int64_t rows = at_most(x.row_count - row, stretch_rows);
      __m512 sums[stretch_rows];
      add_two_tiles<Block>(gate, gate + Block::bytes, 2 * Block::bytes, x, row, rows, sums);
      for (int64_t n = 0; n < rows; ++n) {
        const __m256 gated = avx2::silu(scaled<Block>(lower(sums[n]), row_scales + 2 * r));
        const __m256 up = scaled<Block>(upper(sums[n]), row_scales + 2 * r + tile_rows);
        store_outputs(y + (row + n) * y_stride + r, _mm256_mul_ps(gated, up), outputs);
      }
    }
  }
}

}  // namespace

void matmul_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
               int64_t end) {
  matmul<Q8>(w, x, y, y_stride, begin, end);
}
void matmul_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  matmul<Nl5>(w, x, y, y_stride, begin, end);
}
void matmul_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  matmul<Nl4>(w, x, y, y_stride, begin, end);
}

void gate_up_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end) {
  gate_up<Q8>(w, x, y, y_stride, begin, end);
}
void gate_up_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  gate_up<Nl5>(w, x, y, y_stride, begin, end);
}
void gate_up_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end) {
  gate_up<Nl4>(w, x, y, y_stride, begin, end);
}

}  // namespace glmd::avx512
