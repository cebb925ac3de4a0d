#include "platform/cpu.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

namespace glmd {
namespace {

constexpr int processors_max = 1 << 20;

std::vector<int> affinity_mask() {
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

// A cgroup hierarchy of this process: where it is mounted, and our group in it.
struct Hierarchy {
  std::string mount;
  std::string group;
};

// Version 2 is mounted at the root; a controller of version 1 below its own name or the names of
// all that share the hierarchy.
std::vector<Hierarchy> hierarchies_of(const std::string& root, std::string_view controller) {
  std::vector<Hierarchy> found;
  std::ifstream lines(root + "/proc/self/cgroup");
  const std::string base = root + "/sys/fs/cgroup";
  for (std::string line; std::getline(lines, line);) {  // number:controllers:group
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) found.push_back({base, group});
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      if (name != controller) continue;
      found.push_back({base + "/" + name, group});
      if (controllers != name) found.push_back({base + "/" + controllers, group});
    }
  }
  return found;
}

// Calls visit(folder) for our group and every group above it. What is above a namespace is not
// there to be read, nor is it needed: the kernel keeps to it.
template <typename Visit>
void visit_groups(const Hierarchy& hierarchy, const Visit& visit) {
  std::string group = hierarchy.group == "/" ? "" : hierarchy.group;
  while (true) {
    visit(hierarchy.mount + group);
    if (group.empty()) return;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

// The smallest quota of all groups; 0: none.
int cgroup_quota(const std::string& root) {
  int smallest = 0;
  const auto consider = [&](const std::string& cpu_max) {
    const int quota = quota_processors(cpu_max);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  };
  for (const Hierarchy& hierarchy : hierarchies_of(root, "cpu")) {
    visit_groups(hierarchy, [&](const std::string& folder) {
      consider(first_line(folder + "/cpu.max"));
      consider(first_line(folder + "/cpu.cfs_quota_us") + " " +
               first_line(folder + "/cpu.cfs_period_us"));
    });
  }
  return smallest;
}

// Leaves those that every cpuset has.
void keep_cpusets(const std::string& root, std::vector<int>& processors) {
  for (const Hierarchy& hierarchy : hierarchies_of(root, "cpuset")) {
    visit_groups(hierarchy, [&](const std::string& folder) {
      for (const char* name : {"/cpuset.cpus.effective", "/cpuset.effective_cpus"}) {
        const std::vector<int> set = parse_processor_list(first_line(folder + name));
        if (set.empty()) continue;
        std::erase_if(processors, [&](int each) {
          return std::find(set.begin(), set.end(), each) == set.end();
        });
      }
    });
  }
}

// The first of each core. Where the topology is not told, each is a core.
std::vector<int> one_of_each_core(const std::string& root, const std::vector<int>& processors) {
  std::set<std::pair<std::string, std::string>> cores;
  std::vector<int> first;
  for (const int processor : processors) {
    const std::string topology =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/";
    const std::string core = first_line(topology + "core_id");
    if (core.empty()) return processors;
    if (cores.emplace(first_line(topology + "physical_package_id"), core).second)
      first.push_back(processor);
  }
  return first;
}

}  // namespace

std::vector<int> parse_processor_list(std::string_view text) {
  std::vector<int> processors;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    int begin = 0, end = 0;
    const char* last = range.data() + range.size();
    auto parsed = std::from_chars(range.data(), last, begin);
    if (parsed.ec != std::errc() || begin < 0 || begin >= processors_max) return {};
    end = begin;
    if (parsed.ptr != last && *parsed.ptr == '-')
      parsed = std::from_chars(parsed.ptr + 1, last, end);
    if (parsed.ec != std::errc() || parsed.ptr != last || end < begin || end >= processors_max)
      return {};
    for (int processor = begin; processor <= end; ++processor) processors.push_back(processor);
  }
  return processors;
}

int quota_processors(const std::string& cpu_max) {
  std::istringstream fields(cpu_max);
  int64_t quota = 0;
  int64_t period = 0;
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, processors_max));
}

std::vector<int> compute_processors(const std::string& root,
                                    std::optional<std::vector<int>> affinity) {
  std::vector<int> processors = affinity ? std::move(*affinity) : affinity_mask();
  std::vector<int> kept = processors;
  keep_cpusets(root, kept);
  if (!kept.empty()) processors = one_of_each_core(root, kept);
  if (processors.empty()) processors = {0};
  const int quota = cgroup_quota(root);
  if (quota > 0 && quota < static_cast<int>(processors.size()))
    processors.resize(static_cast<size_t>(quota));
  return processors;
}

int physical_core_count(const std::string& root) {
  return static_cast<int>(compute_processors(root).size());
}

}  // namespace glmd
