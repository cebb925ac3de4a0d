// How many threads do arithmetic here: physical cores, as far as affinity and the cgroup's quota
// allow. Two hyperthreads of a core share its vector units, so the second one adds nothing but
// waiting.
#pragma once

#include <string>

namespace glmd {

// At least 1. `root` is prefixed to /sys and /proc (tests).
int physical_core_count(const std::string& root = "");

// Whole processors a cgroup quota leaves ("max 100000", "250000 100000"): 0 where there is no
// quota.
int quota_processors(const std::string& cpu_max);

}  // namespace glmd
