// The program's own code, kept in memory. A control group above memory.high that holds nothing but
// anonymous memory has only code left to drop: each of its pages is then read again, for a pause of
// up to two seconds, and what would give memory back hardly runs. Thread: any.
#pragma once

namespace glmd {

// Locks what is mapped to be executed or only read, of the program first, then of its libraries.
// False where RLIMIT_MEMLOCK does not allow all of it.
bool lock_program();

}  // namespace glmd
