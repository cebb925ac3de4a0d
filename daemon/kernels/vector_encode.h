// The search of nl4 and nl5 for vectors made of quads, four lanes each (avx2/ and avx512/ bring
// theirs as `Quads`). The scalar sum of squared errors has four lanes, so
// a quad is one candidate: the vector tries two or four of them at once on the same values, and no
// lane is ever added to one of another candidate. Static, as in vector_elementwise.h.
//
// Bins come as value x 2 + 128 from the quotient that the error needs too: doubling is exact.
#pragma once

#include <stdint.h>

#include "kernels/scalar/kernels.h"
#include "kernels/scale_search.h"

namespace glmd {
namespace {

// A bin's code by its cell of 16 bins: that of the cell's first bin, and one more from each border
// on. A border is kept as the place in the cell before it, so that "greater" finds it.
constexpr int cell_bins = 16;
constexpr int cell_borders_max = 4;
struct CellCodes {
  int border_count;  // the most of a cell
  int8_t first[bin_count / cell_bins];
  int8_t before_border[cell_borders_max][bin_count / cell_bins];
};

constexpr CellCodes make_cell_codes(const NearestEntry& nearest) {
  CellCodes cells = {};
  for (int cell = 0; cell < bin_count / cell_bins; ++cell) {
    const uint8_t* codes = nearest.codes + cell * cell_bins;
    cells.first[cell] = static_cast<int8_t>(codes[0]);
    int count = 0;
    for (int i = 1; i < cell_bins; ++i) {
      for (int code = codes[i - 1]; code < codes[i]; ++code)
        cells.before_border[count++][cell] = static_cast<int8_t>(i - 1);
    }
    if (count > cells.border_count) cells.border_count = count;
    while (count < cell_borders_max) cells.before_border[count++][cell] = cell_bins;
  }
  return cells;
}
constexpr CellCodes nl4_cells = make_cell_codes(nl4_nearest);
constexpr CellCodes nl5_cells = make_cell_codes(nl5_nearest);

template <class Search>
constexpr const CellCodes& cells_of() {
  return Search::format == BlockFormat::nl4 ? nl4_cells : nl5_cells;
}

constexpr int lanes = 16;
constexpr int scales_max = 2 * lanes;
struct TriedScales {
  float units[scales_max];    // 1..127, ascending; those behind the last factor repeat it
  float inverse[scales_max];  // 1 / (row_scale x units)
  // What the largest value alone adds to the error at least, since no entry exceeds largest_entry.
  float least_error[scales_max];
};
}  // namespace

// Scales that come out equal are tried again: finding them costs more.
template <class Search, class Lanes>
static inline TriedScales list_scales(float amax, float row_scale) {
  const Lanes one = Lanes::all(1.0f), round = Lanes::all(12582912.0f);
  const Lanes minus_127 = Lanes::all(-127.0f);
  TriedScales scales;
  for (int i = 0; i < Search::factor_count; i += lanes) {
    const Lanes factors = Lanes::load(factors_of<Search>() + i);
    const Lanes wanted = Lanes::all(amax) * factors / Lanes::all(largest_entry * row_scale);
    const Lanes at_least_1 = Lanes::larger((wanted + round) - round, one);
    const Lanes units = Lanes::larger(at_least_1.negative(), minus_127).negative();
    const Lanes inverse = one / (Lanes::all(row_scale) * units);
    const Lanes beyond =
        Lanes::larger(Lanes::all(amax) * inverse - Lanes::all(largest_entry), Lanes::all(0.0f));
    Lanes::store(scales.units + i, units);
    Lanes::store(scales.inverse + i, inverse);
    Lanes::store(scales.least_error + i, beyond * beyond * (units * units));
  }
  return scales;
}

// The bins of four vectors of quotients, as bytes: 16 of each quad.
template <class Quads>
static inline typename Quads::Bytes bins_of(const Quads (&quotients)[4]) {
  return Quads::bytes_of(quotients[0].bins(), quotients[1].bins(), quotients[2].bins(),
                         quotients[3].bins());
}

template <class Search, class Quads>
static inline Quads squared_errors(const float* values, const Quads& inverse_scales) {
  Quads sum = Quads::all(0.0f);
  for (int i = 0; i < group_columns; i += 16) {
    Quads quotients[4];
    for (int quad = 0; quad < 4; ++quad)
      quotients[quad] = Quads::repeat(values + i + 4 * quad) * inverse_scales;
    const auto entries = Quads::template entries<Search>(bins_of(quotients));
    const Quads off[4] = {quotients[0].minus_entries(Quads::template spread<0>(entries)),
                          quotients[1].minus_entries(Quads::template spread<1>(entries)),
                          quotients[2].minus_entries(Quads::template spread<2>(entries)),
                          quotients[3].minus_entries(Quads::template spread<3>(entries))};
    for (const Quads& quad : off) sum = sum + quad * quad;
  }
  return sum.added_within();
}

// The scale of the group: twice its units of the row's, and one more where it is negative, so that
// of equal errors the one tried first by the definition has the lowest number. Even quads try +m,
// odd ones -m. The largest scales are tried first: the smaller one is, the more it cuts off the
// largest value, and once that alone is worse than the best so far, so are all that are left (every
// operation rounds monotonically, so that what is cut off never counts more than the whole error).
template <class Search, class Quads>
static inline int search_group_scale_of(const float* values, const TriedScales& scales) {
  Quads least = Quads::all(__builtin_inff()), best = Quads::all(0.0f);
  constexpr int at_once = Quads::count / 2;
  for (int i = (Search::factor_count - 1) / at_once * at_once; i >= 0; i -= at_once) {
    if (Quads::pairs(scales.least_error + i).all_greater(least)) break;
    const Quads units = Quads::pairs(scales.units + i);
    const Quads inverse = Quads::pairs(scales.inverse + i).odd_negative();
    const Quads errors = squared_errors<Search>(values, inverse) * (units * units);
    Quads::keep_least(errors, units, least, best);
  }
  const Quads numbers = best + best + Quads::odd_ones();
  return static_cast<int>(numbers.where_equal(least, least.least_across()).least_across().first());
}

template <class Search, class Quads, class Lanes>
static inline uint16_t encode_nl_group_of(const float* values, float row_scale, uint8_t* codes) {
  const float amax = Quads::largest_magnitude_of_32(values);
  if (row_scale == 0.0f || amax == 0.0f) {
    for (int i = 0; i < group_columns; ++i) codes[i] = 0;
    return 0;
  }
  const TriedScales scales = list_scales<Search, Lanes>(amax, row_scale);
  const int number = search_group_scale_of<Search, Quads>(values, scales);
  const int units = number / 2, is_negative = number % 2;
  const float magnitude = 1.0f / (row_scale * static_cast<float>(units));
  const Quads inverse_scale = Quads::all(is_negative ? -magnitude : magnitude);
  for (int i = 0; i < group_columns; i += 16) {
    Quads quotients[4];
    for (int quad = 0; quad < 4; ++quad)
      quotients[quad] = Quads::repeat(values + i + 4 * quad) * inverse_scale;
    Quads::store_first_16(codes + i, Quads::template codes<Search>(bins_of(quotients)));
  }
  return static_cast<uint16_t>(units + 128 * is_negative);
}

// Whole groups here, the rest of a row by the definition.
template <class Search, class Quads, class Lanes>
static inline void encode_nl_row_of(const float* values, int64_t columns, float row_scale,
                                    uint16_t* scales, uint8_t* codes) {
  int64_t first = 0;
  for (; first + group_columns <= columns; first += group_columns) {
    scales[first / group_columns] =
        encode_nl_group_of<Search, Quads, Lanes>(values + first, row_scale, codes + first);
  }
  if (first == columns) return;
  const auto encode_rest =
      Search::format == BlockFormat::nl4 ? scalar::encode_row_nl4 : scalar::encode_row_nl5;
  encode_rest(values + first, columns - first, row_scale, scales + first / group_columns,
              codes + first);
}

}  // namespace glmd
