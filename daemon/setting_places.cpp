#include "setting_places.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "experts/routing_trace.h"
#include "platform/file.h"
#include "platform/unix_socket.h"
#include "storage/mirror.h"

namespace glmd {
namespace {

Error place_error(const std::string& path) {
  const bool is_denied = errno == EACCES || errno == EPERM;
  return error(is_denied ? ErrorKind::denied : ErrorKind::config, "{}: {}", path,
               std::strerror(errno));
}

Result<void> check_socket(const std::string& path) {
  TRY_CONTEXT(unix_address(path, ErrorKind::config), path);
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
    return error(ErrorKind::config, "{}: exists and is no socket", path);
  }
  return check_written_folder(parent_folder(path));
}

Result<void> check_trace(const std::string& path) {
  TRY(check_written_folder(parent_folder(path)));
  return check_trace_place(path);
}

std::vector<Result<Mirror>> open_mirrors(const Settings& settings, const Container& container) {
  const std::span<const std::string> folders = settings.mirrors;
  std::vector<Result<Mirror>> mirrors;
  for (size_t i = 0; i < folders.size(); ++i) {
    mirrors.push_back(Mirror::open(folders[i], container, folders.first(i)));
  }
  return mirrors;
}

}  // namespace

Result<void> check_written_folder(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return place_error(path);
  if (!S_ISDIR(status.st_mode)) return error(ErrorKind::config, "{}: wanted a folder", path);
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0) return place_error(path);
  return {};
}

std::vector<Error> check_places(const Settings& settings, const Container& container) {
  std::vector<Error> faults;
  const auto add = [&](const Result<void>& result, std::string_view name) {
    if (!result.ok()) faults.push_back(with_context(result.error(), name));
  };
  if (settings.socket != Settings().socket) add(check_socket(settings.socket), "socket");
  if (settings.state_directory) {
    add(check_written_folder(*settings.state_directory), "state-directory");
  }
  if (settings.trace_routing) add(check_trace(*settings.trace_routing), "trace-routing");
  for (const Result<Mirror>& mirror : open_mirrors(settings, container)) {
    const bool is_refused = !mirror.ok() && mirror.error().kind == ErrorKind::bad_input;
    if (is_refused) faults.push_back(with_context(mirror.error(), "mirrors"));
  }
  return faults;
}

std::vector<std::string> warn_of_mirrors(const Settings& settings, const Container& container) {
  std::vector<std::string> lines;
  for (const Result<Mirror>& mirror : open_mirrors(settings, container)) {
    if (mirror.ok()) {
      const auto warning = same_device_warning(mirror.value().folder, container);
      if (warning) lines.push_back("mirrors: " + *warning);
    } else if (mirror.error().kind != ErrorKind::bad_input) {
      lines.push_back(
          fmt::format("mirrors: {}; glmd starts without it and tries it again while it serves",
                      mirror.error().message));
    }
  }
  return lines;
}

}  // namespace glmd
