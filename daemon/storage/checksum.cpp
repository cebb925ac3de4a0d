#include "storage/checksum.h"

#include <xxhash.h>

namespace glmd {

uint64_t checksum(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace glmd
