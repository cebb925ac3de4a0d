// The config.json of a model that has no checkpoint: a preset or a file, with some of its sizes
// changed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

struct GeometryOptions {
  std::string preset = {};       // one of preset_names(), or
  std::string config_path = {};  // a config.json
  // Kinds of layers in order: dense or moe, each with an indexer of its own or, as dense:shared and
  // moe:shared, without; draft may come last. Empty: as the preset or the file has them.
  std::vector<std::string> layers = {};
  std::optional<int64_t> experts = {};     // routed experts a layer
  std::optional<int64_t> vocabulary = {};  // stop tokens beyond it are left out
};

std::vector<std::string> preset_names();

// Checked: CheckpointConfig::parse accepts it.
Result<Json> make_config(const GeometryOptions& options);

}  // namespace glmd
