#include "platform/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

namespace glmd {
namespace {

// The affinity mask holds what cpusets allow as well.
std::vector<int> allowed_processors() {
  std::vector<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int index = 0; index < CPU_SETSIZE; ++index) {
    if (CPU_ISSET(index, &set)) processors.push_back(index);
  }
  return processors;
}

// Files of /proc and /sys say nothing of their size, so they are read as streams.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int core_count(const std::string& root, const std::vector<int>& processors) {
  std::set<std::pair<std::string, std::string>> cores;
  for (const int processor : processors) {
    const std::string topology =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/";
    const std::string core = first_line(topology + "core_id");
    if (core.empty()) return static_cast<int>(processors.size());
    cores.emplace(first_line(topology + "physical_package_id"), core);
  }
  return static_cast<int>(cores.size());
}

// The smallest quota from the process's own cgroup (version 2) up to the root; 0: none.
int cgroup_processors(const std::string& root) {
  std::ifstream lines(root + "/proc/self/cgroup");
  std::string line;
  std::string path;
  while (std::getline(lines, line)) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  int smallest = 0;
  while (true) {
    const int quota = quota_processors(first_line(root + "/sys/fs/cgroup" + path + "/cpu.max"));
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    if (path.empty() || path == "/") return smallest;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

int quota_processors(const std::string& cpu_max) {
  std::istringstream fields(cpu_max);
  int64_t quota = 0;
  int64_t period = 0;
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, 1 << 20));
}

int physical_core_count(const std::string& root) {
  int count = core_count(root, allowed_processors());
  const int quota = cgroup_processors(root);
  if (quota > 0) count = std::min(count, quota);
  return std::max(count, 1);
}

}  // namespace glmd
