// Lines for the administrator, on stderr. Under systemd each carries its level as `<N>`, which the
// journal takes off again; on a terminal it does not. Only main, server and engine log.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

namespace glmd {

enum class LogLevel {
  error = 3,
  warning = 4,
  notice = 5,
  info = 6,
  debug = 7
};  // syslog's numbers

std::optional<LogLevel> log_level_from(std::string_view name);
void set_log_level(LogLevel level);  // default: info. Thread: any, as all here
bool is_logged(LogLevel level);
void log_line(LogLevel level, std::string_view message);  // one write; further lines are indented

template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::info)) {
    log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace glmd
