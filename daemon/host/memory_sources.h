// Where memory limits, and what is left of them, are read: /proc/meminfo, /proc/pressure/memory and
// every finite limit up the control group path, v1 and v2. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "host/arena_controller.h"
#include "plan/memory_plan.h"

namespace glmd {

// MemAvailable x 0.88. `root` is put in front of /proc and /sys (tests). An unreadable
// /proc/meminfo is an error.
Result<MemoryLimit> available_memory(const std::string& root = "");
// What memory.max and memory.high (v2), memory.limit_in_bytes (v1) of our group and its ancestors
// leave us: each less what others hold below it, and less a hundredth, at least 8 MiB.
std::vector<MemoryLimit> cgroup_limits(const std::string& root = "");
// Of the files in a model's folder that are kept parsed (MemoryNeeds::text_bytes).
int64_t kept_text_bytes(const std::string& folder);
// What is left now of the machine's memory, of every such limit, and of the plan (its total against
// our RssAnon). What cannot be read is left out; the clock is the caller's.
MemoryReadings read_memory(int64_t plan_bytes, const std::string& root = "");

}  // namespace glmd
