#include "platform/check.h"

#include <cstdio>
#include <cstdlib>

namespace glmd {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace glmd
