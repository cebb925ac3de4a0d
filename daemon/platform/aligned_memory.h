// One anonymous mapping: zeroed, aligned to 2 MiB, huge pages where allowed. Movable, never copied.
#pragma once

#include <cstdint>
#include <span>

#include "platform/result.h"

namespace glmd {

class AlignedMemory {
 public:
  // Fails with no_memory; pages are taken on first touch.
  static Result<AlignedMemory> allocate(int64_t bytes);

  AlignedMemory() = default;
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  ~AlignedMemory();

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<uint8_t> bytes() { return {data_, static_cast<size_t>(size_bytes_)}; }

  // False where RLIMIT_MEMLOCK forbids it.
  bool lock();
  // Whole pages of `part` go back to the system and are zero when touched again.
  void give_back(std::span<uint8_t> part);

 private:
  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
};

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace glmd
