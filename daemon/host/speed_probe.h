// Measures for about a second what planning needs: how fast whole experts come from disk, by the
// reads that serving uses, and how fast the team reads memory and is done with a task.
#pragma once

#include <cstdint>

#include "plan/speed_estimate.h"
#include "platform/result.h"
#include "storage/container.h"
#include "storage/reader_choice.h"

namespace glmd {

// What the measurements take, one after the other: half of the budget at most, but for one expert
// and a page. A share of memory that caches keep reads too fast, which only a tiny budget allows.
struct ProbeSize {
  int64_t reads = 0;         // whole experts under way
  int64_t memory_bytes = 0;  // that the team reads
};
ProbeSize probe_size(int64_t expert_bytes, int threads, int64_t budget_bytes);

// All but the disk, in a fifth of a second.
Result<MachineSpeed> measure_team(int threads, int64_t budget_bytes);
// The disk's speed is 0 where a container has no experts.
Result<MachineSpeed> measure_speed(const Container& container, ReaderKind reader, int threads,
                                   int64_t budget_bytes);

}  // namespace glmd
