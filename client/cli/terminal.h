// glmctl's standard streams: the answer alone on stdout, all else on stderr, every failed write
// noticed.
#pragma once

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
Result<std::string> read_stdin(int64_t bytes_max);

// SIGINT: counts instead of ending the program, from the first call on.
void count_interrupts();
int interrupt_count();

}  // namespace glmd
