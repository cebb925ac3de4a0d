// glmctl's standard streams: the answer alone on stdout, all else on stderr, every failed write
// noticed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "platform/result.h"

namespace glmd {

// To stdout, at once. A reader that left is `cancelled`, anything else `io`.
Result<void> write_answer(std::string_view text);
// Whether stderr gets colour: `auto` means a terminal, unless NO_COLOR, CLICOLOR_FORCE or TERM=dumb
// says otherwise.
enum class Color { automatic, always, never };
bool has_color(Color color);
void write_thought(std::string_view text, bool is_dim);  // to stderr
bool is_stderr_terminal();
bool is_stdin_piped();  // a pipe, file or socket: something that a shell connected on purpose

// What others wrote, as one line that moves no cursor: control characters become \n, \x1b and so
// on.
std::string printable(std::string_view text);

// SIGINT: counts instead of ending the program, from the first call on. Where whoever started us
// ignores it, it stays ignored.
void count_interrupts();
int interrupt_count();

}  // namespace glmd
