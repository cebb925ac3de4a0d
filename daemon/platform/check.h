// A bug is no Result: CHECK states what must hold here, is always on, and ends the process with the
// place.
#pragma once

namespace glmd {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}

#define CHECK(condition)                             \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::glmd::check_failed(#condition, __FILE__, __LINE__))

// For inner loops: on in debug builds only.
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define DCHECK(condition) CHECK(condition)
#endif
