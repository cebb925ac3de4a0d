// Quantised matrices with AVX-512 VNNI: vpdpbusd multiplies unsigned weights with signed codes and
// adds four products to a 32-bit lane, exactly. Weights are made unsigned by an offset (64, or 128
// for q8); sums start at what takes it off again, a multiple of the sum of the codes.
//
// A group of weights is unpacked into registers, two blocks in each (16 rows x 4 columns), and
// meets all rows of activations before the next group: no weight is written back, and any number
// of rows runs through the same loop. Activations come from a panel in the order of use, which many
// tiles share; float sums wait in the first cache.
//
// Lookups use vpermb, which reads 6 bits of an index: tables are repeated to 64 entries, so that
// the bits above an index need no mask.
#include "kernels/avx512/arithmetic.h"
#include "kernels/avx512/kernels.h"
#include "platform/check.h"

namespace glmd::avx512 {
namespace {

constexpr int64_t prefetch_bytes_few = 6144, prefetch_bytes_many = 3072;
constexpr int64_t panel_entries = 1024;  // 40 KiB of activations
constexpr int64_t sum_entries = 2048;    // 256 KiB of sums, of 32 outputs each

int64_t at_most(int64_t n, int64_t most) {
  return n < most ? n : most;
}

__m256i load_vector(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// The same bytes of two blocks, side by side.
__m512i load_both(const uint8_t* first, const uint8_t* second, int64_t at) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load_vector(first + at)),
                            load_vector(second + at), 1);
}

// Scale bytes m | sign << 7 as +-m. (-0 for +0 changes no sum: sums are never -0.)
__m512 nl_scales(const uint8_t* first, const uint8_t* second) {
  const __m128i bytes =
      _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(first)),
                         _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second)));
  const __m512i wide = _mm512_cvtepu8_epi32(bytes);
  const __m512 magnitudes = _mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(127)));
  constexpr int first_and_second_or_third = 0xea;
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(_mm512_slli_epi32(wide, 24), _mm512_set1_epi32(INT32_MIN),
                                _mm512_castps_si512(magnitudes), first_and_second_or_third));
}

// unpack: vector c holds columns 4c..4c+3 of the 8 rows of both blocks, with the offset added.
struct Nl4 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl4);
  static constexpr bool has_row_scales = true;
  static constexpr int offset_bits = 6;
  static __m512 scales(const uint8_t* first, const uint8_t* second) {
    return nl_scales(first, second);
  }
  static void unpack(const uint8_t* first, const uint8_t* second, __m512i* weights) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(nl4_table));
    const __m512i table = _mm512_broadcast_i32x4(_mm_add_epi8(entries, _mm_set1_epi8(64)));
    for (int i = 0; i < 4; ++i) {
      const __m512i nibbles = load_both(first, second, 8 + 32 * i);
      weights[2 * i] = _mm512_permutexvar_epi8(nibbles, table);
      weights[2 * i + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(nibbles, 4), table);
    }
  }
};

struct Nl5 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::nl5);
  static constexpr bool has_row_scales = true;
  static constexpr int offset_bits = 6;
  static __m512 scales(const uint8_t* first, const uint8_t* second) {
    return nl_scales(first, second);
  }
  // Bit c of a byte of fifth bits is moved to bit 4, above the low bits of vector c; what stands
  // higher is not read. Shifts of whole words do, and unlike rotations leave the ports that
  // multiply alone.
  static void unpack(const uint8_t* first, const uint8_t* second, __m512i* weights) {
    const __m512i table =
        _mm512_add_epi8(_mm512_broadcast_i64x4(load_vector(nl5_table)), _mm512_set1_epi8(64));
    const __m512i low_mask = _mm512_set1_epi8(15);
    constexpr int select = 0xca;  // first ? second : third
    const __m512i fifths = load_both(first, second, 136);
    for (int c = 0; c < 8; ++c) {
      __m512i low = load_both(first, second, 8 + c / 2 * 32);
      if (c % 2 == 1) low = _mm512_srli_epi16(low, 4);
      const __m512i fifth =
          c < 4 ? _mm512_slli_epi16(fifths, 4 - c) : _mm512_srli_epi16(fifths, c - 4);
      weights[c] =
          _mm512_permutexvar_epi8(_mm512_ternarylogic_epi64(low_mask, low, fifth, select), table);
    }
  }
};

struct Q8 {
  static constexpr int64_t bytes = block_bytes(BlockFormat::q8);
  static constexpr bool has_row_scales = false;
  static constexpr int offset_bits = 7;
  static __m512 scales(const uint8_t* first, const uint8_t* second) {
    return _mm512_cvtph_ps(_mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1));
  }
  static void unpack(const uint8_t* first, const uint8_t* second, __m512i* weights) {
    for (int i = 0; i < 8; ++i) {
      weights[i] = _mm512_xor_si512(load_both(first, second, 16 + 32 * i), _mm512_set1_epi8(-128));
    }
  }
};

// ---- Activations: 32 columns of one row, and all rows of a group behind each other.
struct CodeGroup {
  int8_t codes[group_columns];
  int32_t start;  // minus the offset of the weights times the sum of the codes
  float scale;
};

// A row at a time. Rows are pages apart, where nothing is fetched ahead by itself: the groups that
// come behind these are sent for, and wait in the second cache.
void pack(const Activations& x, int64_t first_row, int64_t rows, int64_t first_group,
          int64_t groups, int offset_bits, CodeGroup* panel) {
  const int64_t row_groups = padded_columns(x.columns) / group_columns;
  const int64_t behind = at_most(row_groups - first_group - groups, groups);
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t first = (first_row + n) * row_groups + first_group;
    const int8_t* codes = x.codes + first * group_columns;
    for (int64_t g = 0; g < groups; ++g) {
      CodeGroup& to = panel[g * rows + n];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes),
                          load_vector(codes + g * group_columns));
      to.start = -x.sums[first + g] * (1 << offset_bits);
      to.scale = x.scales[first + g];
    }
    avx2::prefetch_to_second_cache(codes + groups * group_columns, behind * group_columns);
    avx2::prefetch_to_second_cache(x.sums + first + groups, behind * 4);
    avx2::prefetch_to_second_cache(x.scales + first + groups, behind * 4);
  }
}

// Keeps GCC from adding products up as a tree, which takes more registers than there are.
__m512i multiply_add(__m512i sum, __m512i weights, __m512i codes) {
  sum = _mm512_dpbusd_epi32(sum, weights, codes);
  asm("" : "+v"(sum));
  return sum;
}

int32_t load_4(const int8_t* codes) {
  int32_t four;
  memcpy(&four, codes, 4);
  return four;
}

void prefetch(const uint8_t* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + line, _MM_HINT_T0);
  }
}

__m256 lower(__m512 value) {
  return _mm512_castps512_ps256(value);
}
__m256 upper(__m512 value) {
  return _mm512_extractf32x8_ps(value, 1);
}

// Where tiles lie: those of a matrix (parts = 1), or of gate and up in turn (parts = 2).
template <class Block, int parts>
struct Tiles {
  explicit Tiles(const Matrix& w)
      : groups(padded_columns(w.columns) / group_columns),
        row_scales(reinterpret_cast<const float*>(w.data)),
        blocks(w.data + (Block::has_row_scales ? padded_rows(w.rows) * parts * 4 : 0)) {}

  static constexpr int64_t block_stride = parts * Block::bytes;
  const uint8_t* block(int64_t tile, int64_t group) const {
    return blocks + (tile / parts * groups * parts + group * parts + tile % parts) * Block::bytes;
  }
  int64_t tile_stride() const { return groups * Block::bytes; }  // on average

  // Sums of a tile (and of the up tile behind it) become outputs; those from `end` on are dropped.
  void store(int64_t tile, __m256 sum, __m256 up_sum, float* y, int64_t end) const {
    const int64_t row = tile / parts * tile_rows;
    if (row >= end) return;
    __m256 value = scaled(sum, tile);
    if (parts == 2) value = _mm256_mul_ps(avx2::silu(value), scaled(up_sum, tile + 1));
    if (row + tile_rows <= end) _mm256_storeu_ps(y + row, value);
    if (row + tile_rows > end) avx2::store(y + row, value, end - row);
  }
  // The same of four tiles; all 16 outputs of two pairs of gate and up go through silu at once.
  void store_set(int64_t tile, const __m512 (&sums)[2], float* y, int64_t end) const {
    if (parts == 1) {
      for (int p = 0; p < 2; ++p, tile += 2) {
        store(tile, lower(sums[p]), lower(sums[p]), y, end);
        store(tile + 1, upper(sums[p]), upper(sums[p]), y, end);
      }
      return;
    }
    __m512 values[2];
    for (int p = 0; p < 2; ++p) {
      values[p] = sums[p];
      if (Block::has_row_scales) {
        values[p] =
            _mm512_mul_ps(_mm512_loadu_ps(row_scales + (tile + 2 * p) * tile_rows), sums[p]);
      }
    }
    const __m512 gates = _mm512_shuffle_f32x4(values[0], values[1], 0x44);
    const __m512 ups = _mm512_shuffle_f32x4(values[0], values[1], 0xee);
    const int64_t row = tile / parts * tile_rows;
    const __m512 outputs = _mm512_mul_ps(silu(gates), ups);
    _mm512_mask_storeu_ps(y + row, first_lanes(at_most(end - row, 16)), outputs);
  }
  __m256 scaled(__m256 sum, int64_t tile) const {
    if (!Block::has_row_scales) return sum;
    return _mm256_mul_ps(avx2::load(row_scales + tile * tile_rows), sum);
  }

  int64_t groups;
  const float* row_scales;
  const uint8_t* blocks;
};

// ---- Few rows: memory is the limit, and it likes one stream. The halves of a register are two
// groups of one tile; codes differ between them, and sums take the lower half first.
template <class Block, int parts, int rows>
void add_tile(const uint8_t* blocks, int64_t groups, const CodeGroup* x, __m256 (*sums)[parts]) {
  __m256 local[rows][parts];
  for (int n = 0; n < rows; ++n) {
    for (int p = 0; p < parts; ++p) local[n][p] = sums[n][p];
  }
  for (int64_t group = 0; group < groups; group += 2) {
    const bool is_last = group + 1 == groups;  // alone: it stands in for the second
    const int64_t second = is_last ? 0 : parts * Block::bytes;
    const CodeGroup* second_x = is_last ? x : x + rows;
    __m512i weights[parts][8];
    __m512 scales[parts];
    prefetch(blocks + prefetch_bytes_few, 2 * parts * Block::bytes);
    for (int p = 0; p < parts; ++p, blocks += Block::bytes) {
      Block::unpack(blocks, blocks + second, weights[p]);
      scales[p] = Block::scales(blocks, blocks + second);
    }
    for (int n = 0; n < rows; ++n) {
      constexpr __mmask16 upper_half = 0xff00;
      const __m512i start =
          _mm512_mask_set1_epi32(_mm512_set1_epi32(x[n].start), upper_half, second_x[n].start);
      __m512i dots[parts];
      for (int p = 0; p < parts; ++p) dots[p] = start;
      for (int c = 0; c < 8; ++c) {
        const __m512i codes = _mm512_mask_set1_epi32(_mm512_set1_epi32(load_4(x[n].codes + 4 * c)),
                                                     upper_half, load_4(second_x[n].codes + 4 * c));
        for (int p = 0; p < parts; ++p) dots[p] = multiply_add(dots[p], weights[p][c], codes);
      }
      const __m512 x_scales =
          _mm512_insertf32x8(_mm512_set1_ps(x[n].scale), _mm256_set1_ps(second_x[n].scale), 1);
      for (int p = 0; p < parts; ++p) {
        const __m512 dot = _mm512_cvtepi32_ps(dots[p]);
        const __m512 scale = _mm512_mul_ps(scales[p], x_scales);
        local[n][p] = _mm256_fmadd_ps(lower(dot), lower(scale), local[n][p]);
        if (!is_last) local[n][p] = _mm256_fmadd_ps(upper(dot), upper(scale), local[n][p]);
      }
    }
    blocks += second;
    x += 2 * rows;
  }
  for (int n = 0; n < rows; ++n) {
    for (int p = 0; p < parts; ++p) sums[n][p] = local[n][p];
  }
}

template <class Block, int parts>
void multiply_few(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end) {
  const Tiles<Block, parts> tiles(w);
  const int64_t rows = x.row_count, stretch = panel_entries / rows;
  CodeGroup panel[panel_entries];
  for (int64_t row = begin; row < end; row += tile_rows) {
    const int64_t tile = row / tile_rows * parts;
    __m256 sums[few_rows][parts];
    for (int64_t n = 0; n < rows; ++n) {
      for (int p = 0; p < parts; ++p) sums[n][p] = _mm256_setzero_ps();
    }
    for (int64_t group = 0; group < tiles.groups; group += stretch) {
      const int64_t now = at_most(tiles.groups - group, stretch);
      if (row == begin || now < tiles.groups) {
        pack(x, 0, rows, group, now, Block::offset_bits, panel);
      }
      const uint8_t* blocks = tiles.block(tile, group);
      if (rows == 1) add_tile<Block, parts, 1>(blocks, now, panel, sums);
      if (rows == 2) add_tile<Block, parts, 2>(blocks, now, panel, sums);
    }
    for (int64_t n = 0; n < rows; ++n) {
      tiles.store(tile, sums[n][0], sums[n][parts - 1], y + n * y_stride, end);
    }
  }
}

// ---- Many rows: four tiles, two in each of two registers.
struct TileSet {
  const uint8_t* blocks[2][2];
};

template <int rows>
inline void add_rows(const __m512i (&weights)[2][8], const __m512 (&scales)[2], const CodeGroup* x,
                     __m512 (*sums)[2]) {
  __m512i dots[rows][2];
  for (int n = 0; n < rows; ++n) dots[n][0] = dots[n][1] = _mm512_set1_epi32(x[n].start);
  for (int c = 0; c < 8; ++c) {
    for (int n = 0; n < rows; ++n) {
      const __m512i codes = _mm512_set1_epi32(load_4(x[n].codes + 4 * c));
      for (int p = 0; p < 2; ++p) dots[n][p] = multiply_add(dots[n][p], weights[p][c], codes);
    }
  }
  for (int n = 0; n < rows; ++n) {
    for (int p = 0; p < 2; ++p) {
      const __m512 scale = _mm512_mul_ps(scales[p], _mm512_set1_ps(x[n].scale));
      sums[n][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[n][p]), scale, sums[n][p]);
    }
  }
}

template <class Block>
void add_set(TileSet tiles, int64_t block_stride, int64_t ahead, int64_t groups, const CodeGroup* x,
             int64_t rows, __m512 (*sums)[2]) {
  for (int64_t group = 0; group < groups; ++group, x += rows) {
    __m512i weights[2][8];
    __m512 scales[2];
    for (int p = 0; p < 2; ++p) {
      const uint8_t* first = tiles.blocks[p][0];
      const uint8_t* second = tiles.blocks[p][1];
      prefetch(first + ahead, Block::bytes);
      prefetch(second + ahead, Block::bytes);
      Block::unpack(first, second, weights[p]);
      scales[p] = Block::scales(first, second);
      tiles.blocks[p][0] += block_stride;
      tiles.blocks[p][1] += block_stride;
    }
    int64_t n = 0;
    for (; n + 4 <= rows; n += 4) add_rows<4>(weights, scales, x + n, sums + n);
    for (; n < rows; ++n) add_rows<1>(weights, scales, x + n, sums + n);
  }
}

template <class Block, int parts>
void multiply_many(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                   int64_t end) {
  constexpr int64_t set_tiles = set_rows / tile_rows;
  const Tiles<Block, parts> tiles(w);
  const int64_t begin_tile = begin / tile_rows * parts;
  const int64_t end_tile = padded_rows(end) / tile_rows * parts;
  CodeGroup panel[panel_entries];
  __m512 sums[sum_entries][2];
  for (int64_t row = 0; row < x.row_count; row += panel_rows) {
    const int64_t rows = at_most(x.row_count - row, panel_rows);
    const int64_t stretch = panel_entries / rows, tiles_at_once = sum_entries / rows * set_tiles;
    for (int64_t first = begin_tile; first < end_tile; first += tiles_at_once) {
      const int64_t last = at_most(end_tile, first + tiles_at_once);
      const int64_t sets = (last - first + set_tiles - 1) / set_tiles;
      memset(sums, 0, static_cast<size_t>(sets * rows) * sizeof *sums);
      for (int64_t group = 0; group < tiles.groups; group += stretch) {
        const int64_t now = at_most(tiles.groups - group, stretch);
        if (first == begin_tile || now < tiles.groups) {
          pack(x, row, rows, group, now, Block::offset_bits, panel);
        }
        const int64_t ahead =
            now == tiles.groups ? prefetch_bytes_many : set_tiles * tiles.tile_stride();
        for (int64_t tile = first; tile < last; tile += set_tiles) {
          TileSet set;  // what is missing behind the last tile is stood in for by the first
          for (int i = 0; i < set_tiles; ++i) {
            set.blocks[i / 2][i % 2] = tiles.block(tile + i < last ? tile + i : tile, group);
          }
          add_set<Block>(set, tiles.block_stride, ahead, now, panel, rows,
                         sums + (tile - first) / set_tiles * rows);
        }
      }
      for (int64_t n = 0; n < rows; ++n) {  // a row at a time: rows are pages apart
        float* to = y + (row + n) * y_stride;
        for (int64_t tile = first; tile < last; tile += set_tiles) {
          tiles.store_set(tile, sums[(tile - first) / set_tiles * rows + n], to, end);
        }
      }
    }
  }
}

template <class Block, int parts>
void multiply(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
              int64_t end) {
  DCHECK(begin % tile_rows == 0);
  DCHECK(w.columns == x.columns);
  if (x.row_count == 0) return;
  if (x.row_count <= few_rows) multiply_few<Block, parts>(w, x, y, y_stride, begin, end);
  if (x.row_count > few_rows) multiply_many<Block, parts>(w, x, y, y_stride, begin, end);
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

}  // namespace glmd::avx512
