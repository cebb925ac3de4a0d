// A checkpoint to convert, for the encoding bench: one sparse layer of GLM-5.2's own widths in FP8
// with block scales. The values are bell-shaped and made up.
#pragma once

#include <cstdint>
#include <string>

#include "platform/result.h"

namespace glmd {

// Into a folder that exists. About 0.3 GB, and 38 MB for each expert.
Result<void> write_encode_slice(const std::string& folder, int64_t experts);

}  // namespace glmd
