#include "memory_sources.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
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
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || value <= 0) return std::nullopt;
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

void add_limit(const std::string& root, const std::string& path, std::vector<MemoryLimit>& limits) {
  constexpr int64_t unlimited = int64_t{1} << 60;  // v1 writes a huge number for "none"
  const std::optional<std::string> text = read_pseudo_file(root + path);
  const std::optional<int64_t> bytes = text ? leading_number(*text) : std::nullopt;
  if (bytes && *bytes < unlimited) limits.push_back({path, *bytes});
}

}  // namespace

Result<MemoryLimit> available_memory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const std::optional<std::string> text = read_pseudo_file(path);
  constexpr std::string_view key = "MemAvailable:";
  const size_t place = text ? text->find(key) : std::string::npos;
  const std::optional<int64_t> kib =
      place == std::string::npos
          ? std::nullopt
          : leading_number(std::string_view(*text).substr(place + key.size()));
  if (!kib) {
    return error(ErrorKind::io, "{}: MemAvailable cannot be read; give the budget with --memory",
                 path);
  }
  return MemoryLimit{"MemAvailable x 0.88", *kib * 1024 / 100 * 88};
}

std::vector<MemoryLimit> cgroup_limits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  const std::optional<std::string> groups = read_pseudo_file(root + "/proc/self/cgroup");
  if (!groups) return limits;
  size_t begin = 0;
  while (begin < groups->size()) {
    const size_t end = std::min(groups->find('\n', begin), groups->size());
    const std::string entry = groups->substr(begin, end - begin);  // id:controllers:path
    begin = end + 1;
    const size_t first = entry.find(':'), second = entry.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + entry.substr(first + 1, second - first - 1) + ",";
    for (const std::string& group : with_ancestors(entry.substr(second + 1))) {
      if (controllers == ",,") {
        add_limit(root, "/sys/fs/cgroup" + group + "/memory.max", limits);
        add_limit(root, "/sys/fs/cgroup" + group + "/memory.high", limits);
      } else if (controllers.find(",memory,") != std::string::npos) {
        add_limit(root, "/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limits);
      }
    }
  }
  return limits;
}

}  // namespace glmd
