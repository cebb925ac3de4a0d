// What a checkpoint's generation_config.json says about sampling, where a request names nothing.
#pragma once

#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

// `do_sample: false` means greedy; no file (null) too.
struct GenerationDefaults {
  double temperature = 0;
  double top_p = 1;
};

Result<GenerationDefaults> read_generation_defaults(const Json& generation_config);

}  // namespace glmd
