#include "host/memory_sources.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "platform/file.h"

namespace glmd {
namespace {

// Files of /proc and /sys say nothing of their size.
std::optional<std::string> read_pseudo_file(const std::string& path) {
  Result<File> file = File::open_read_only(path);
  if (!file.ok()) return std::nullopt;
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::read(file.value().descriptor(), buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > (1 << 20)) break;
  }
  return text;
}

std::optional<int64_t> leading_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || value < 0) return std::nullopt;
  return value;
}

// `group` and its ancestors: "/a/b" -> "/a/b", "/a", "".
std::vector<std::string> with_ancestors(std::string group) {
  std::vector<std::string> groups;
  while (!group.empty() && group != "/") {
    groups.push_back(group);
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  groups.emplace_back();
  return groups;
}

// A memory control group: the folder of its files, and which version's names they have.
struct Group {
  std::string folder;
  bool is_v2 = true;
};

// Our group and its ancestors, in every hierarchy that can limit memory.
std::vector<Group> memory_groups(const std::string& root) {
  std::vector<Group> found;
  const std::optional<std::string> groups = read_pseudo_file(root + "/proc/self/cgroup");
  if (!groups) return found;
  size_t begin = 0;
  while (begin < groups->size()) {
    const size_t end = std::min(groups->find('\n', begin), groups->size());
    const std::string entry = groups->substr(begin, end - begin);  // id:controllers:path
    begin = end + 1;
    const size_t first = entry.find(':'), second = entry.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + entry.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find(",memory,") == std::string::npos) continue;
    for (const std::string& group : with_ancestors(entry.substr(second + 1))) {
      found.push_back({(is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + group, is_v2});
    }
  }
  return found;
}

std::optional<int64_t> read_number(const std::string& path) {
  const std::optional<std::string> text = read_pseudo_file(path);
  return text ? leading_number(*text) : std::nullopt;
}

void add_limits(const std::string& root, const Group& group, std::vector<MemoryLimit>& limits) {
  constexpr int64_t unlimited = int64_t{1} << 60;  // v1 writes a huge number for "none"
  for (const char* name : group.is_v2 ? std::vector{"memory.max", "memory.high"}
                                      : std::vector{"memory.limit_in_bytes"}) {
    const std::string path = group.folder + "/" + name;
    const std::optional<int64_t> bytes = read_number(root + path);
    if (bytes && *bytes < unlimited) limits.push_back({path, *bytes});
  }
}

// The number behind `key` at the beginning of a line, times `unit`.
std::optional<int64_t> find_number(std::string_view text, std::string_view key, int64_t unit = 1) {
  for (size_t place = text.find(key); place != std::string_view::npos;
       place = text.find(key, place + 1)) {
    if (place > 0 && text[place - 1] != '\n') continue;
    const std::optional<int64_t> number = leading_number(text.substr(place + key.size()));
    return number ? std::optional(*number * unit) : std::nullopt;
  }
  return std::nullopt;
}

// What a group holds and cannot simply drop: its use without the page cache and, where version 2
// tells, the kernel's caches of names and inodes.
std::optional<int64_t> held_bytes(const std::string& root, const Group& group) {
  const std::string folder = root + group.folder;
  const std::optional<int64_t> used =
      read_number(folder + (group.is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!used) return std::nullopt;
  const std::string stat = read_pseudo_file(folder + "/memory.stat").value_or("");
  const std::string prefix = group.is_v2 ? "" : "total_";
  return *used - find_number(stat, prefix + "inactive_file ").value_or(0) -
         find_number(stat, prefix + "active_file ").value_or(0) -
         find_number(stat, "slab_reclaimable ").value_or(0);
}

std::optional<int64_t> own_anonymous_bytes(const std::string& root) {
  const std::string own = read_pseudo_file(root + "/proc/self/status").value_or("");
  return find_number(own, "RssAnon:", 1024);
}

// A share of the whole, within sensible bounds.
int64_t low_water(int64_t total_bytes, int64_t divisor, int64_t least, int64_t most) {
  return std::clamp(total_bytes / divisor, least, most);
}

constexpr int64_t mebibyte = 1 << 20;
// The kernel counts more than is planned (page tables, sockets), and ends who reaches memory.max.
constexpr int64_t spared_bytes_min = 8 * mebibyte;

void read_pressure(const std::string& root, MemoryReadings& readings) {
  const std::string text = read_pseudo_file(root + "/proc/pressure/memory").value_or("");
  // "some avg10=0.12 avg60=...", then "full avg10=..."; kernels without it: no pressure.
  std::sscanf(text.c_str(), "some avg10=%lf", &readings.some_percent);
  const size_t full = text.find("full avg10=");
  if (full != std::string::npos) {
    std::sscanf(text.c_str() + full, "full avg10=%lf", &readings.full_percent);
  }
}

}  // namespace

Result<MemoryLimit> available_memory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const std::string text = read_pseudo_file(path).value_or("");
  const std::optional<int64_t> bytes = find_number(text, "MemAvailable:", 1024);
  if (!bytes) {
    return error(ErrorKind::io, "{}: MemAvailable cannot be read; give the budget with --memory",
                 path);
  }
  return MemoryLimit{"MemAvailable x 0.88", *bytes / 100 * 88};
}

std::vector<MemoryLimit> cgroup_limits(const std::string& root) {
  const int64_t own_bytes = own_anonymous_bytes(root).value_or(0);
  std::vector<MemoryLimit> limits;
  for (const Group& group : memory_groups(root)) {
    std::vector<MemoryLimit> found;
    add_limits(root, group, found);
    const int64_t held_bytes_now = found.empty() ? 0 : held_bytes(root, group).value_or(0);
    const int64_t others_bytes = std::max<int64_t>(0, held_bytes_now - own_bytes);
    for (const MemoryLimit& limit : found) {
      const int64_t spared_bytes = std::max(limit.bytes / 100, spared_bytes_min);
      limits.push_back({fmt::format("{}: {} bytes less {} spared and {} of others", limit.name,
                                    limit.bytes, spared_bytes, others_bytes),
                        std::max<int64_t>(0, limit.bytes - spared_bytes - others_bytes)});
    }
  }
  return limits;
}

int64_t kept_text_bytes(const std::string& folder) {
  int64_t bytes = 0;
  for (const char* name : {"/tokenizer.json", "/glmd.json"}) {
    std::error_code failure;
    const auto size = std::filesystem::file_size(folder + name, failure);
    if (!failure) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

MemoryReadings read_memory(int64_t plan_bytes, const std::string& root) {
  MemoryReadings readings;
  read_pressure(root, readings);
  const std::string machine = read_pseudo_file(root + "/proc/meminfo").value_or("");
  const std::optional<int64_t> available = find_number(machine, "MemAvailable:", 1024);
  const std::optional<int64_t> total = find_number(machine, "MemTotal:", 1024);
  if (available && total) {
    readings.rooms.push_back(
        {"MemAvailable", *available, low_water(*total, 32, 128 * mebibyte, 2048 * mebibyte)});
  }
  if (const std::optional<int64_t> anonymous = own_anonymous_bytes(root)) {
    readings.anonymous_bytes = *anonymous;
    readings.rooms.push_back({"the plan", plan_bytes - *anonymous, 0});
  }
  for (const Group& group : memory_groups(root)) {
    std::vector<MemoryLimit> limits;
    add_limits(root, group, limits);
    const std::optional<int64_t> held = limits.empty() ? std::nullopt : held_bytes(root, group);
    if (!held) continue;
    for (const MemoryLimit& limit : limits) {
      readings.rooms.push_back({limit.name, limit.bytes - *held,
                                low_water(limit.bytes, 100, 8 * mebibyte, 256 * mebibyte)});
    }
  }
  return readings;
}

}  // namespace glmd
