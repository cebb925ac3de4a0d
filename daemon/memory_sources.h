// Where memory limits are read: /proc/meminfo and every finite limit up the control group path, v1
// and v2.
#pragma once

#include <string>
#include <vector>

#include "memory_plan.h"

namespace glmd {

// MemAvailable x 0.88. `root` is put in front of /proc and /sys (tests). An unreadable
// /proc/meminfo is an error.
Result<MemoryLimit> available_memory(const std::string& root = "");
// memory.max and memory.high (v2), memory.limit_in_bytes (v1) of our group and its ancestors.
std::vector<MemoryLimit> cgroup_limits(const std::string& root = "");

}  // namespace glmd
