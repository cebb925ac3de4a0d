#include <string.h>

#include "kernels/kernel_table.h"

namespace glmd {

const KernelTable& avx2_kernels();    // avx2/table.cpp
const KernelTable& avx512_kernels();  // avx512/table.cpp

// F16C is older than AVX2 and clang cannot ask for it.
static bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

const KernelTable* find_kernels(const char* name) {
  const bool is_auto = strcmp(name, "auto") == 0;
  if ((is_auto || strcmp(name, "avx512") == 0) && has_avx512()) return &avx512_kernels();
  if ((is_auto || strcmp(name, "avx2") == 0) && has_avx2()) return &avx2_kernels();
  if (is_auto || strcmp(name, "scalar") == 0) return &scalar_kernels();
  return nullptr;
}

}  // namespace glmd
