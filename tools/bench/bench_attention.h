// `glmd-bench attention`: what a step does besides multiplying matrices, with GLM-5.2's shapes:
// attention over latents, the indexer, sampling. Against the float and read loops, interleaved.
#pragma once

#include "bench_command.h"

namespace glmd {

BenchCommand add_attention_command(CLI::App& parent);

}  // namespace glmd
