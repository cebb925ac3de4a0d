#include "tests/support/heap_count.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

std::atomic<int64_t> allocations{0}, bytes{0}, bytes_max{0};

}  // namespace

namespace glmd {

HeapCount heap_count() {
  return {allocations, bytes};
}

int64_t take_heap_bytes_max() {
  return bytes_max.exchange(bytes);
}

}  // namespace glmd

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// These take the place of glibc's functions, in its libraries too; operator new calls them.
extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* memory);

static void* counted(void* memory) {
  if (memory == nullptr) return nullptr;
  ++allocations;
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t now = bytes.fetch_add(size) + size;
  int64_t most = bytes_max;
  while (most < now && !bytes_max.compare_exchange_weak(most, now)) {
  }
  return memory;
}

static void* uncounted(void* memory) {
  if (memory != nullptr) bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}

void* malloc(size_t size) {
  return counted(__libc_malloc(size));
}
void* calloc(size_t count, size_t size) {
  return counted(__libc_calloc(count, size));
}
void* realloc(void* memory, size_t size) {
  return counted(__libc_realloc(uncounted(memory), size));
}
void* memalign(size_t alignment, size_t size) {
  return counted(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) {
  return counted(__libc_memalign(alignment, size));
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = counted(__libc_memalign(alignment, size));
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  __libc_free(uncounted(memory));
}
}
#endif
