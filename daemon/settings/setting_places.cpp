#include "settings/setting_places.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "experts/routing_trace.h"
#include "platform/file.h"
#include "platform/unix_socket.h"
#include "storage/io_uring_reader.h"
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

std::optional<Error> fault_of(const Result<void>& result, std::string_view setting) {
  if (result.ok()) return std::nullopt;
  return with_context(result.error(), setting);
}

SettingPlace written_place(std::string setting, std::string folder, const Result<void>& checked,
                           std::string remedy) {
  std::optional<Error> fault = fault_of(checked, setting);
  return {.setting = std::move(setting),
          .folder = std::move(folder),
          .is_written = true,
          .fault = std::move(fault),
          .remedy = std::move(remedy)};
}

SettingPlace mirror_place(const std::string& folder, const Container& container,
                          std::span<const std::string> others) {
  SettingPlace place;
  place.setting = "mirrors";
  place.folder = folder;
  place.remedy = "glmd-mirror stages it anew, or leave out " + folder;
  const Result<Mirror> mirror = Mirror::open(folder, container, others);
  if (mirror.ok()) {
    const std::optional<std::string> warning = same_device_warning(folder, container);
    if (!warning) return place;
    place.fault = error(ErrorKind::config, "mirrors: {}", *warning);
    place.remedy = "a folder on another disk";
    place.is_survived = true;
    return place;
  }
  place.fault = with_context(mirror.error(), "mirrors");
  place.is_survived = mirror.error().kind != ErrorKind::bad_input;
  if (place.is_survived) {
    place.fault->message += "; glmd starts without it and tries it again while it serves";
  }
  return place;
}

}  // namespace

Result<void> check_written_folder(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return place_error(path);
  if (!S_ISDIR(status.st_mode)) return error(ErrorKind::config, "{}: wanted a folder", path);
  if (!may_access(path, W_OK | X_OK)) return place_error(path);
  return {};
}

Result<void> check_reader(ReaderKind reader) {
  if (reader != ReaderKind::io_uring) return {};
  const Result<void> allowed = IoUringReader::probe();
  if (allowed.ok()) return {};
  return error(ErrorKind::config, "reader: {}", allowed.error().message);
}

std::vector<SettingPlace> places_of(const Settings& settings, const Container* container) {
  std::vector<SettingPlace> places;
  if (settings.socket != Settings().socket) {
    places.push_back(written_place("socket", parent_folder(settings.socket),
                                   check_socket(settings.socket),
                                   "--socket with a path in a folder that is there"));
  }
  if (settings.state_directory) {
    places.push_back(written_place("state-directory", *settings.state_directory,
                                   check_written_folder(*settings.state_directory),
                                   "mkdir -p " + *settings.state_directory));
  }
  if (settings.trace_routing) {
    places.push_back(written_place("trace-routing", parent_folder(*settings.trace_routing),
                                   check_trace(*settings.trace_routing),
                                   "--trace-routing with a new file in a folder that is there"));
  }
  if (container == nullptr) return places;
  const std::span<const std::string> mirrors = settings.mirrors;
  for (size_t i = 0; i < mirrors.size(); ++i) {
    places.push_back(mirror_place(mirrors[i], *container, mirrors.first(i)));
  }
  return places;
}

}  // namespace glmd
