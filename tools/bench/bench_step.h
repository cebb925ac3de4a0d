// glmd-bench step: one decode step and one prefill of a model that lies in memory, by part, beside
// what the machine could do.
#pragma once

#include "bench_command.h"

namespace glmd {

BenchCommand add_step_command(CLI::App& parent);

}  // namespace glmd
