// `glmd-bench kernels`: matrix kernels against the machine's two limits, interleaved in one run.
#pragma once

#include "bench_command.h"

namespace glmd {

BenchCommand add_kernels_command(CLI::App& parent);

}  // namespace glmd
