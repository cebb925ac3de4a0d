// Whether what settings name can be had here, as the user we are: places on disk, the reader. The
// start, `--check` and `--doctor` ask the same functions; nothing is made or changed to find out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "platform/result.h"
#include "settings/settings.h"
#include "storage/container.h"

namespace glmd {

// A folder that may be written in. Errors: config, denied.
Result<void> check_written_folder(const std::string& path);

// Whether it can read here at all. Errors: config.
Result<void> check_reader(ReaderKind reader);

struct SettingPlace {
  std::string setting;  // "socket", "state-directory", "trace-routing", "mirrors"
  std::string folder;   // that must be there
  bool is_written = false;
  std::optional<Error> fault;  // why it cannot be used, beginning with the setting
  bool is_survived = false;    // the start warns of the fault and goes on
  std::string remedy;          // of a fault that does not tell its own
};

// The places that settings name. The default socket is systemd's to make and is not among them;
// nor are mirrors where there is no container that they could be compared with.
std::vector<SettingPlace> places_of(const Settings& settings, const Container* container);

}  // namespace glmd
