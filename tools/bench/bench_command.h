// A subcommand of glmd-bench: its options and what it runs. Each bench_*.h declares one.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "platform/result.h"

namespace glmd {

struct BenchCommand {
  CLI::App* app = nullptr;  // says whether the user chose it
  std::function<Result<void>()> run;
};

}  // namespace glmd
