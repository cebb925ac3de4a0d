// Matrix kernels against the machine's two limits, interleaved in one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace glmd {

struct KernelBench {
  std::string kernels = "auto";
  std::vector<std::string> formats = {"nl4", "nl5", "q8"};
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 64};
  std::vector<int> threads = {1, 2};
  int repetitions = 9;
  bool as_json = false;
};

// Returns false if this CPU lacks the table.
bool bench_kernels(const KernelBench& options);

}  // namespace glmd
