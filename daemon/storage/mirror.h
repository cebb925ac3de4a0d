// A copy of a container's experts on another disk, whole or some of them. A whole one may be a
// plain copy of the container; glmd-mirror stages either: files of the same names and sizes (with
// holes where an expert is not there) and mirror.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/json.h"
#include "platform/result.h"
#include "storage/container.h"

namespace glmd {

// mirror.json: of which container, and which experts are there.
struct MirrorManifest {
  static constexpr const char* file_name = "mirror.json";
  static constexpr int64_t format_version = 1;

  uint64_t identity = 0;                                 // of the container
  std::map<std::string, uint64_t, std::less<>> experts;  // tensor name -> hash

  Json to_json() const;
  static Result<MirrorManifest> parse(const Json& json, std::string_view what);
  static Result<MirrorManifest> read(const std::string& folder);
};

struct Mirror {
  std::string folder;
  std::vector<std::string> paths;  // the files that are there
  std::vector<int32_t> file_of;    // container's file -> index in `paths`, or -1
  std::set<std::pair<int32_t, int64_t>> expert_places;  // container's file and offset

  // What is set wrongly is `bad_input`: a mirror of another container, one inside the container's
  // folder, and what is no copy: files that are the container's own or those of `others`, folders
  // that are read already. What may be mended where it lies is anything else: damage is `corrupt`,
  // what is not there `not_found`, and what the disk says.
  static Result<Mirror> open(const std::string& folder, const Container& container,
                             std::span<const std::string> others = {});
};

// Below the container's folder, whatever links lead there. Also for a folder still to be made.
bool is_inside(const std::string& folder, const Container& container);

// Where copies in `folder`, there or still to be made, lie with the container's experts on one
// device: a line for people.
std::optional<std::string> same_device_warning(const std::string& folder,
                                               const Container& container);

}  // namespace glmd
