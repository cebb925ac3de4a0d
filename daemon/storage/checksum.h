// XXH3-64: the hash of tensors, records and files. Guards against damage, not against malice.
#pragma once

#include <cstdint>
#include <span>

namespace glmd {

uint64_t checksum(std::span<const uint8_t> bytes);

}  // namespace glmd
