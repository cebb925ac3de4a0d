// Whether the places on disk that settings name can be used, as the user we are; nothing is made or
// changed to find out.
#pragma once

#include <string>
#include <vector>

#include "platform/result.h"
#include "settings.h"
#include "storage/container.h"

namespace glmd {

// A folder that may be written in. Errors: config, denied.
Result<void> check_written_folder(const std::string& path);

// All that the start would refuse, each beginning with its setting's name. The default socket is
// systemd's to make and is not looked at.
std::vector<Error> check_places(const Settings& settings, const Container& container);

// Lines for what the start would go on with: mirrors that it leaves out for now, and those on the
// container's device.
std::vector<std::string> warn_of_mirrors(const Settings& settings, const Container& container);

}  // namespace glmd
