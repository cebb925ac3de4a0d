#include "platform/aligned_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace glmd {

constexpr int64_t huge_page_bytes = 2 << 20;

Result<AlignedMemory> AlignedMemory::allocate(int64_t bytes) {
  CHECK(bytes >= 0);
  AlignedMemory memory;
  memory.size_bytes_ = bytes;
  if (bytes == 0) return memory;
  memory.mapping_bytes_ = round_up(bytes, huge_page_bytes) + huge_page_bytes;
  void* mapping =
      ::mmap(nullptr, static_cast<size_t>(memory.mapping_bytes_), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    memory.mapping_bytes_ = 0;
    return error(ErrorKind::no_memory, "map {} bytes: {}", bytes, std::strerror(errno));
  }
  memory.mapping_ = mapping;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const auto aligned = (address + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  memory.data_ = static_cast<uint8_t*>(mapping) + (aligned - address);
  if (bytes >= huge_page_bytes) ::madvise(memory.data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return memory;
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept {
  *this = std::move(other);
}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

AlignedMemory::~AlignedMemory() {
  if (mapping_ != nullptr) ::munmap(mapping_, static_cast<size_t>(mapping_bytes_));
}

bool AlignedMemory::lock() {
  return size_bytes_ == 0 || ::mlock(data_, static_cast<size_t>(size_bytes_)) == 0;
}

void AlignedMemory::give_back(std::span<uint8_t> part) {
  constexpr int64_t page_bytes = 4096;
  const int64_t offset = round_up(part.data() - data_, page_bytes);
  const int64_t end =
      (part.data() - data_ + static_cast<int64_t>(part.size())) / page_bytes * page_bytes;
  if (end <= offset) return;
  ::madvise(data_ + offset, static_cast<size_t>(end - offset), MADV_DONTNEED);
}

}  // namespace glmd
