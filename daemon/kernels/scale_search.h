// What nl4 and nl5 try for the scale of a group, and which entry of their table is nearest: shared
// by the scalar definition and the vector versions. All of it is internal to who includes it, so
// that no copy compiled for one instruction set is picked for another.
#pragma once

#include <stdint.h>

#include "kernels/block_formats.h"

namespace glmd {
namespace {

constexpr float largest_entry = 63.0f;

// The nearest entry by lookup. Entries are integers, so borders between them are multiples of one
// half, and the half unit that a value falls in decides: bin 128 + 2 x value. A value on a border
// is in the bin above it.
constexpr int bin_count = 256;
struct NearestEntry {
  uint8_t codes[bin_count];
  int8_t entries[bin_count];
};

template <int entry_count>
constexpr NearestEntry make_nearest_entry(const int8_t (&table)[entry_count]) {
  NearestEntry nearest = {};
  for (int bin = 0; bin < bin_count; ++bin) {
    const int centre = 2 * (bin - 128) + 1;  // in quarters
    int best = 0;
    for (int code = 1; code < entry_count; ++code) {
      const int distance =
          centre > 4 * table[code] ? centre - 4 * table[code] : 4 * table[code] - centre;
      const int least =
          centre > 4 * table[best] ? centre - 4 * table[best] : 4 * table[best] - centre;
      if (distance < least) best = code;
    }
    nearest.codes[bin] = static_cast<uint8_t>(best);
    nearest.entries[bin] = table[best];
  }
  return nearest;
}

// The group's amax, times each factor, is tried as the value of the largest entry. Behind the last
// factor it is repeated, for vectors.
constexpr int factors_max = 32;
struct Factors {
  float values[factors_max];
};
constexpr Factors make_factors(int count, float first, float last) {
  Factors factors = {};
  for (int i = 0; i < factors_max; ++i) {
    const int index = i < count ? i : count - 1;
    factors.values[i] =
        first + (last - first) * static_cast<float>(index) / static_cast<float>(count - 1);
  }
  return factors;
}

struct Nl4Search {
  static constexpr BlockFormat format = BlockFormat::nl4;
  static constexpr int factor_count = 17;
  static constexpr float factor_last = 1.08f;
};
struct Nl5Search {
  static constexpr BlockFormat format = BlockFormat::nl5;
  static constexpr int factor_count = 13;
  static constexpr float factor_last = 1.06f;
};

constexpr NearestEntry nl4_nearest = make_nearest_entry(nl4_table);
constexpr NearestEntry nl5_nearest = make_nearest_entry(nl5_table);
constexpr Factors nl4_factors =
    make_factors(Nl4Search::factor_count, 0.60f, Nl4Search::factor_last);
constexpr Factors nl5_factors =
    make_factors(Nl5Search::factor_count, 0.75f, Nl5Search::factor_last);

template <class Search>
constexpr const NearestEntry& nearest_of() {
  return Search::format == BlockFormat::nl4 ? nl4_nearest : nl5_nearest;
}
template <class Search>
constexpr const float* factors_of() {
  return Search::format == BlockFormat::nl4 ? nl4_factors.values : nl5_factors.values;
}

}  // namespace
}  // namespace glmd
