// How soon a thread runs that is woken while every processor computes.
#pragma once

namespace glmd {

// For a thread that works seldom, shortly, and at once, like one that keeps a disk busy. A thread
// that asks for a short slice runs when it is woken (Linux 6.12 and later); others wait until those
// that run have had theirs, here up to 4 ms, in which a disk reads 14 MB. Needs no privilege;
// elsewhere nothing changes. Thread: any, for itself.
void ask_for_short_time_slice();

}  // namespace glmd
