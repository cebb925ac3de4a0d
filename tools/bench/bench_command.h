// A subcommand of glmd-bench: its options and what it runs. Each bench_*.h declares one.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "kernels/kernel_table.h"
#include "platform/result.h"

namespace glmd {

struct BenchCommand {
  CLI::App* app = nullptr;  // says whether the user chose it
  std::function<Result<void>()> run;
};

// One of those that --formats names: nl4, nl5, q8.
inline BlockFormat format_of(const std::string& name) {
  return name == "q8" ? BlockFormat::q8 : name == "nl5" ? BlockFormat::nl5 : BlockFormat::nl4;
}

// The table that --kernels names.
inline Result<const KernelTable*> kernels_named(const std::string& name) {
  const KernelTable* kernels = find_kernels(name.c_str());
  if (kernels == nullptr)
    return error(ErrorKind::usage, "--kernels: this CPU has no table \"{}\"", name);
  return kernels;
}

}  // namespace glmd
