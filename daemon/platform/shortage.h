// How a program ends that cannot have the memory or the threads it needs. The library says so by
// exceptions, in whichever thread it happens, and none of ours carries on after them: one line and
// an exit code instead of an abort.
#pragma once

#include <optional>

#include "platform/result.h"

namespace glmd {

// For main, first of all: from now on an uncaught exception of a shortage, in any thread, ends the
// program with "PROGRAM: what could not be had" and the exit code of no_memory, or denied where a
// filter of system calls refuses threads. Output that is not
// flushed yet is lost. Other exceptions abort, as they did. `program` outlives the process.
void end_on_shortage(const char* program);

// In a catch block, for who has something to put in order before the end: no_memory or denied
// where the exception tells of a shortage, unset for any other.
std::optional<Error> caught_shortage();

}  // namespace glmd
