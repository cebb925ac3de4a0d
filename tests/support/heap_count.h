// Counts what the program takes from the heap, on all of its threads. Sanitizers have a heap of
// their own, which is not counted.
#pragma once

#include <cstdint>

namespace glmd {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool counts_heap = false;
#else
constexpr bool counts_heap = true;
#endif

struct HeapCount {
  int64_t allocations = 0;  // since the program began
  int64_t bytes = 0;        // in use now
};
HeapCount heap_count();

// The most bytes in use at any time since the last call.
int64_t take_heap_bytes_max();

}  // namespace glmd
