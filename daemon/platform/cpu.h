// How many threads do arithmetic here, and where: one for each physical core, as far as affinity,
// cpusets and the cgroup's quota allow. Two hyperthreads of a core share its vector units, so the
// second one adds nothing but waiting.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glmd {

// A processor for each such thread, ascending, at least one: the lowest of each core, the first of
// them where a quota leaves fewer. `root` is prefixed to /sys and /proc, `affinity` stands for this
// process's mask (tests).
std::vector<int> compute_processors(const std::string& root = "",
                                    std::optional<std::vector<int>> affinity = std::nullopt);

int physical_core_count(const std::string& root = "");

// Whole processors that a quota leaves, as cgroup version 2 writes it ("max 100000", "250000
// 100000"): 0 where there is no quota.
int quota_processors(const std::string& cpu_max);

// "0-2,8" -> 0, 1, 2, 8; empty where it is no such list.
std::vector<int> parse_processor_list(std::string_view text);

}  // namespace glmd
