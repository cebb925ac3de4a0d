#include "platform/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace glmd {
namespace {

constexpr rlim_t ample_files = 65536;  // as in the unit; some containers allow a billion

}  // namespace

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= ample_files) return;
  limit.rlim_cur = std::min(limit.rlim_max, ample_files);
  ::setrlimit(RLIMIT_NOFILE, &limit);  // where it fails, the one that opens a file says so
}

std::string open_files_limit_text() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return fmt::format("the limit is {} (LimitNOFILE= of the unit, ulimit -Hn)",
                     static_cast<uint64_t>(limit.rlim_cur));
}

}  // namespace glmd
