// A container with random weights, for benches and tests of geometries whose checkpoint nobody has
// at hand: written into TARGET.partial and renamed to TARGET when whole. The same configuration,
// policies and seed give the same bytes.
#pragma once

#include <cstdint>
#include <string>

#include "platform/json.h"
#include "platform/result.h"
#include "tools/convert/converter.h"

namespace glmd {

struct MakeOptions {
  Json config;  // a config.json that CheckpointConfig::parse accepts
  std::string target;
  Policies policies;  // exact: BF16
  uint64_t seed = 1;
  int threads = 1;
};

// An error or a broken-off run leaves nothing behind.
Result<void> make_model(const MakeOptions& options, const ConvertObserver& observer);

}  // namespace glmd
