// A copy of a container's experts on another disk, whole or some of them. A whole one may be a
// plain copy of the container; glmd-mirror stages either: files of the same names and sizes (with
// holes where an expert is not there) and mirror.json.
#pragma once

#include <cstdint>
#include <map>
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

  // Refuses, with `bad_input`, what is not of this container, and what is no copy: files that are
  // the container's own or those of `others`, folders that are read already.
  static Result<Mirror> open(const std::string& folder, const Container& container,
                             std::span<const std::string> others = {});
};

}  // namespace glmd
