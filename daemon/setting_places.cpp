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
  const std::span<const std::string> mirrors = settings.mirrors;
  for (size_t i = 0; i < mirrors.size(); ++i) {
    const Result<Mirror> mirror = Mirror::open(mirrors[i], container, mirrors.first(i));
    if (!mirror.ok()) faults.push_back(with_context(mirror.error(), "mirrors"));
  }
  return faults;
}

}  // namespace glmd
