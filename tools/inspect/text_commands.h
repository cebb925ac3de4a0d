// The part of glmd-inspect that looks at text: tokenize, detokenize, render. What comes in is
// standard input.
#pragma once

#include <CLI/CLI.hpp>

namespace glmd {

// Adds the commands; the one that is chosen runs while `app` parses, and leaves its exit code.
void add_text_commands(CLI::App& app, int& exit_code);

}  // namespace glmd
