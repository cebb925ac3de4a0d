// What every program of ours owes its standard streams: descriptors 0 to 2 that are never taken by
// a file or a socket, and output whose loss is told. Thread: main.
#pragma once

#include "platform/result.h"

namespace glmd {

// First thing in main. Where 0, 1 or 2 is closed, /dev/null takes its place, opened so that using
// it still fails: reading 0 or writing 1 or 2 gives EBADF.
void hold_standard_streams();

// Flushes stdout. Errors: io, for this or any earlier write that did not get through.
Result<void> finish_output();

// Last thing in main: finish_output(), and one line on stderr where that fails. The exit code of
// the program: `code`, unless that is 0 and its output is lost.
int finish_program(const char* name, int code);

}  // namespace glmd
