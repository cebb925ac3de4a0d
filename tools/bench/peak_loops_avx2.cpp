#include <immintrin.h>

#include "peak_loops.h"

namespace glmd {
namespace {

uint64_t read(const uint8_t* data, int64_t bytes) {
  __m256i sums[8] = {};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      const auto* from = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      sums[j] = _mm256_xor_si256(sums[j], _mm256_loadu_si256(from));
    }
  }
  for (int j = 1; j < 8; ++j) sums[0] = _mm256_xor_si256(sums[0], sums[j]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0) ^ _mm256_extract_epi64(sums[0], 3));
}

// In assembly, so that no compiler merges sums: vpmaddubsw, vpmaddwd, vpaddd on 10 sums.
#define STEP(sum, temporary)                              \
  "vpmaddubsw %%ymm14, %%ymm15, %%ymm" temporary          \
  "\n\t"                                                  \
  "vpmaddwd %%ymm13, %%ymm" temporary ", %%ymm" temporary \
  "\n\t"                                                  \
  "vpaddd %%ymm" temporary ", %%ymm" sum ", %%ymm" sum "\n\t"
void multiply_int8(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(STEP("0", "10") STEP("1", "11") STEP("2", "12") STEP("3", "10") STEP("4", "11")
                     STEP("5", "12") STEP("6", "10") STEP("7", "11") STEP("8", "12") STEP("9", "10")
                 :
                 :
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm12");
  }
}
#undef STEP

}  // namespace

const PeakLoops& avx2_peak_loops() {
  static constexpr PeakLoops loops = {"avx2", read, 10 * 32, multiply_int8};
  return loops;
}

// vfmadd231ps on 12 sums of 8 lanes.
#define STEP(sum) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" sum "\n\t"
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

FloatPeak avx2_float_peak() {
  return {12 * 8, multiply_float};
}

}  // namespace glmd
