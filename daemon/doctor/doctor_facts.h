// Gathers what `glmd --plan` and `--doctor` judge: reads small files and asks the kernel, measures
// nothing, changes nothing.
#pragma once

#include "doctor/doctor.h"
#include "settings/settings.h"
#include "storage/container.h"

namespace glmd {

// Hardware, kernel and identity. `root` is put in front of /proc and
// /sys (tests). Root judges as the service's user where that exists and root may act as it, others
// as themselves.
MachineFacts gather_machine(const Settings& settings, const std::string& root = "");
// A folder with everything above it, and what the identity may do there.
PlaceFact gather_place(std::string purpose, const std::string& path, const Identity& identity);
// All of it, with the places of the settings, the model that is served and its memory plan, whether
// or not they are sound.
MachineFacts gather_facts(const Settings& settings, const std::string& model_folder,
                          const Result<Container>& container);

}  // namespace glmd
