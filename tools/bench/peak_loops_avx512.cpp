#include <immintrin.h>

#include "peak_loops.h"

namespace glmd {
namespace {

uint64_t read(const uint8_t* data, int64_t bytes) {
  __m512i sums[8] = {};
  for (int64_t i = 0; i + 512 <= bytes; i += 512) {
    for (int j = 0; j < 8; ++j)
      sums[j] = _mm512_xor_si512(sums[j], _mm512_loadu_si512(data + i + 64 * j));
  }
  for (int j = 1; j < 8; ++j) sums[0] = _mm512_xor_si512(sums[0], sums[j]);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sums[0]);
  return words[0] ^ words[7];
}

// vpdpbusd on 12 sums.
#define STEP(sum) "vpdpbusd %%zmm14, %%zmm15, %%zmm" sum "\n\t"
void multiply_int8(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(STEP("0") STEP("1") STEP("2") STEP("3") STEP("4") STEP("5") STEP("6") STEP("7")
                     STEP("8") STEP("9") STEP("10") STEP("11")
                 :
                 :
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11");
  }
}
#undef STEP

}  // namespace

const PeakLoops& avx512_peak_loops() {
  static constexpr PeakLoops loops = {"avx512", read, 12 * 64, multiply_int8};
  return loops;
}

// vfmadd231ps on 12 sums of 16 lanes.
#define STEP(sum) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" sum "\n\t"
static void multiply_float(int64_t rounds) {
  asm volatile("vpxor %%xmm14, %%xmm14, %%xmm14\n\tvpxor %%xmm15, %%xmm15, %%xmm15" ::
                   : "xmm14", "xmm15");
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(STEP("0") STEP("1") STEP("2") STEP("3") STEP("4") STEP("5") STEP("6") STEP("7")
                     STEP("8") STEP("9") STEP("10") STEP("11")
                 :
                 :
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm14", "xmm15");
  }
}
#undef STEP

FloatPeak avx512_float_peak() {
  return {12 * 16, multiply_float};
}

}  // namespace glmd
