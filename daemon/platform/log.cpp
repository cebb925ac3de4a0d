#include "platform/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace glmd {
namespace {

std::atomic<LogLevel> level_max{LogLevel::info};

// JOURNAL_STREAM names the device and inode that stderr had when systemd started us.
bool is_journal(int descriptor) {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (!stream || fstat(descriptor, &status) != 0) return false;
  return fmt::format("{}:{}", status.st_dev, status.st_ino) == stream;
}

}  // namespace

std::optional<LogLevel> log_level_from(std::string_view name) {
  if (name == "error") return LogLevel::error;
  if (name == "warning") return LogLevel::warning;
  if (name == "notice") return LogLevel::notice;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return std::nullopt;
}

void set_log_level(LogLevel level) {
  level_max = level;
}

bool is_logged(LogLevel level) {
  return level <= level_max.load();
}

void log_line(LogLevel level, std::string_view message) {
  if (!is_logged(level)) return;
  if (message.ends_with('\n')) message.remove_suffix(1);
  static const bool has_prefix = is_journal(STDERR_FILENO);
  std::string line =
      has_prefix ? fmt::format("<{}>", static_cast<int>(level)) : std::string("glmd: ");
  for (const char c : message) {
    line += c;
    if (c == '\n') line += "  ";
  }
  line += '\n';
  // Nobody is left to tell when stderr fails.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace glmd
