// How many files a program may have open at once. What a shell gives, 1024 or 256, is less than a
// container with mirrors takes; what it allows is a hundred times that.
#pragma once

#include <string>

namespace glmd {

// For main: the soft limit becomes the hard one, at most 65536. Children inherit it.
void raise_open_files_limit();

// What to say where even that was too low: "the limit is 256 (LimitNOFILE= of the unit, ulimit
// -Hn)".
std::string open_files_limit_text();

}  // namespace glmd
