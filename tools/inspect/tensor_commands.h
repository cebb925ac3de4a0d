// `tensors DIR` and `verify DIR`.
#pragma once

#include <CLI/CLI.hpp>

namespace glmd {

// The commands set `exit_code` when they have run.
void add_tensor_commands(CLI::App& app, int& exit_code);

}  // namespace glmd
