// What the machine can do at most: reading memory, and multiplying int8. Kernels are measured
// against these two.
#pragma once

#include <cstdint>

namespace glmd {

struct PeakLoops {
  const char* name;
  // Reads all of it; the result depends on every byte.
  uint64_t (*read)(const uint8_t* data, int64_t bytes);
  // `rounds` x int8_products multiply-adds in independent sums.
  int64_t int8_products;
  void (*multiply_int8)(int64_t rounds);
};

const PeakLoops& avx2_peak_loops();
const PeakLoops& avx512_peak_loops();
// Those that belong to a kernel table.
const PeakLoops& find_peak_loops(const char* kernels);

// `rounds` x products fused multiply-adds of float32 in independent sums.
struct FloatPeak {
  int64_t products;
  void (*multiply)(int64_t rounds);
};
FloatPeak avx2_float_peak();
FloatPeak avx512_float_peak();
FloatPeak find_float_peak(const char* kernels);

}  // namespace glmd
