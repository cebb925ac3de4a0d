// Writes consecutive bytes of one tensor and hashes them on the way. The disk begins with them at
// once, so that little is left to wait for when the file is synced.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <span>

#include "storage/safetensors.h"

namespace glmd {

class TensorSink {
 public:
  TensorSink(SafetensorsWriter& writer, int64_t offset)
      : writer_(writer), offset_(offset), hash_(XXH3_createState(), &XXH3_freeState) {
    XXH3_64bits_reset(hash_.get());
  }
  Result<void> append(std::span<const uint8_t> bytes) {
    XXH3_64bits_update(hash_.get(), bytes.data(), bytes.size());
    TRY(writer_.write_at(offset_, bytes));
    writer_.start_sync(offset_, static_cast<int64_t>(bytes.size()));
    offset_ += static_cast<int64_t>(bytes.size());
    return {};
  }
  uint64_t hash() const { return XXH3_64bits_digest(hash_.get()); }

 private:
  SafetensorsWriter& writer_;
  int64_t offset_;
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash_;
};

}  // namespace glmd
