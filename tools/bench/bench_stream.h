// glmd-bench stream: tokens per second while experts come from disk, beside the least time that the
// disk alone or the arithmetic alone takes for the same tokens.
#pragma once

#include "bench_command.h"

namespace glmd {

BenchCommand add_stream_command(CLI::App& parent);

}  // namespace glmd
