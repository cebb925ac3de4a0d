// What becomes of a planned container on disk, whoever fills it with values: the headers of its
// files, the room they need, their lines in glmd.json, and publication under the final name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "platform/file.h"
#include "platform/result.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "tools/convert/conversion_plan.h"

namespace glmd {

// The folder to make, without slashes at the end; `what` is its name on the command line. Refuses
// what the whole folder could not be renamed to: nothing, the folder one is in, symbolic links,
// mount points.
Result<std::string> target_folder(std::string given, std::string_view what = "TARGET");

// The folder TARGET.partial that a program works in, made where it is not there, and held against
// all others of ours until the file is closed; renaming does not let it go. Errors: busy.
Result<File> hold_folder(const std::string& path);
Result<void> check_not_held(const std::string& path);  // the same of what exists; changes nothing
// Refuses a folder that another program works in or left: what it is, and how to go on.
Error foreign_folder(const std::string& path);

Result<void> sync_folder(const std::string& path);

// The tensors of a file as its header names them.
std::vector<StoredTensor> stored_tensors(const PlannedFile& file);

// Room that a container takes besides its tensors: glmd.json, the small files, a journal.
constexpr int64_t accompanying_bytes = int64_t{16} << 20;

// Adds a written file and its tensors; `hashes` has each of them by name.
void describe_file(const PlannedFile& file,
                   const std::map<std::string, uint64_t, std::less<>>& hashes, Manifest& manifest);

// Writes a file beside the tensors and records it.
Result<void> write_accompanying(const std::string& folder, std::string_view name,
                                std::string_view content, Manifest& manifest);

// Checks that `partial` is a whole container and renames it to `target`; durable on return.
Result<void> publish_folder(const std::string& partial, const std::string& target);

}  // namespace glmd
