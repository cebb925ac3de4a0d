// What every program of ours owes its standard streams: descriptors 0 to 2 that are never taken by
// a file or a socket, and output whose loss is told. Thread: main.
#pragma once

#include <cstdio>

#include "platform/result.h"

namespace glmd {

// First thing in main. Where 0, 1 or 2 is closed, /dev/null takes its place, opened so that using
// it still fails: reading 0 or writing 1 or 2 gives EBADF.
void hold_standard_streams();

// As fmt::print, which throws where a write fails: what is lost here, finish_output() tells.
template <typename... Args>
void print_text(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stream);
}

// Flushes stdout. Errors: io, for this or any earlier write that did not get through.
Result<void> finish_output();

// Last thing in main: finish_output(), and one line on stderr where that fails. The exit code of
// the program: `code`, unless that is 0 and its output is lost.
int finish_program(const char* name, int code);

}  // namespace glmd
