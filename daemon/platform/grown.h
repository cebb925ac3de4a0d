// Scratch buffers that live from step to step: they grow to the largest step and take no memory
// afterwards. Never more than asked for, not even while they grow: what they held is lost then.
#pragma once

#include <cstdint>
#include <vector>

namespace glmd {

// The buffer's data, with room for `count` elements.
template <typename T>
T* grown(std::vector<T>& buffer, int64_t count) {
  if (static_cast<int64_t>(buffer.size()) < count) {
    buffer = std::vector<T>();  // gives its memory back first
    buffer.resize(static_cast<size_t>(count));
  }
  return buffer.data();
}

// The same, at a multiple of 64 bytes, where vectors of any width never cross a cache line.
template <typename T>
T* grown_aligned(std::vector<T>& buffer, int64_t count) {
  constexpr int64_t line_bytes = 64, spare = line_bytes / static_cast<int64_t>(sizeof(T));
  const auto address = reinterpret_cast<uintptr_t>(grown(buffer, count + spare));
  return reinterpret_cast<T*>((address + line_bytes - 1) / line_bytes * line_bytes);
}

}  // namespace glmd
