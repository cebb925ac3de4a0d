// `glmd-bench reads`: expert-sized reads at random places of a large file, by both block readers,
// beside fio with the same file in the same run.
#pragma once

#include "bench_command.h"

namespace glmd {

BenchCommand add_reads_command(CLI::App& parent);

}  // namespace glmd
