#include "peak_loops.h"

#include <cstring>

namespace glmd {

const PeakLoops& find_peak_loops(const char* kernels) {
  return strcmp(kernels, "avx512") == 0 ? avx512_peak_loops() : avx2_peak_loops();
}

FloatPeak find_float_peak(const char* kernels) {
  return strcmp(kernels, "avx512") == 0 ? avx512_float_peak() : avx2_float_peak();
}

}  // namespace glmd
