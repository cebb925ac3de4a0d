// `glmd-bench encode`: what the converter does to weights, step by step and as a whole, beside the
// read loop and a copy of the checkpoint by cp.
#pragma once

#include "bench_command.h"

namespace glmd {

BenchCommand add_encode_command(CLI::App& parent);

}  // namespace glmd
