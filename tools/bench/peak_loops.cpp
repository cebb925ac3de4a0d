#include "peak_loops.h"

#include <cstring>

namespace glmd {

const PeakLoops& find_peak_loops(const char* kernels) {
  return strcmp(kernels, "avx512") == 0 ? avx512_peak_loops() : avx2_peak_loops();
}

}  // namespace glmd
