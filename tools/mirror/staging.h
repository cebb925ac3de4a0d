// Copies experts to a mirror, and checks one. A mirror is there whole or not at all: it is made
// beside its place, as FOLDER.partial, synced, and renamed. A mirror.json without experts says from
// the beginning whose it is. Staging again after an interruption keeps what is there, right and
// still wanted; the rest is released first.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/mirror/mirror_plan.h"

namespace glmd {

struct StageProgress {
  int64_t bytes_done = 0, bytes_total = 0;
  int64_t bytes_kept = 0;  // of those done, from an earlier run
};

// Whether a mirror of the container may be made there at all: the model has experts, the place is
// free and not in the container's folder, and what lies beside it is a stage of this container or
// nothing. Changes nothing.
Result<void> check_mirror_place(const Container& container, const std::string& folder);

// What experts there may take: free space, and what an earlier run left, less the reserve.
Result<int64_t> mirror_bytes_available(const Container& container, const std::string& folder,
                                       int64_t reserve_bytes);

// All that stage_mirror() would refuse before it begins.
Result<void> check_staging(const Container& container, const MirrorPlan& plan,
                           const std::string& folder, int64_t reserve_bytes);

// `report` returns false to stop; then the next run continues.
Result<void> stage_mirror(const Container& container, const MirrorPlan& plan,
                          const std::string& folder, int64_t reserve_bytes,
                          const std::function<bool(const StageProgress&)>& report);

// Every problem, a line each; empty: sound.
std::vector<std::string> verify_mirror(const Container& container, const std::string& folder);

}  // namespace glmd
