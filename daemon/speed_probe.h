// Measures for about a second what planning needs: how fast whole experts come from disk, by the
// reads that serving uses, and how fast the team reads memory.
#pragma once

#include "platform/result.h"
#include "speed_estimate.h"
#include "storage/container.h"
#include "storage/reader_choice.h"

namespace glmd {

// The disk's speed is 0 where a container has no experts.
Result<MachineSpeed> measure_speed(const Container& container, ReaderKind reader, int threads);

}  // namespace glmd
