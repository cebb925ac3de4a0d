// Scratch buffers that live from step to step: they grow to the largest step and take no memory
// afterwards.
#pragma once

#include <cstdint>
#include <vector>

namespace glmd {

// The buffer's data, with room for `count` elements; what it held stays.
template <typename T>
T* grown(std::vector<T>& buffer, int64_t count) {
  if (static_cast<int64_t>(buffer.size()) < count) buffer.resize(static_cast<size_t>(count));
  return buffer.data();
}

}  // namespace glmd
