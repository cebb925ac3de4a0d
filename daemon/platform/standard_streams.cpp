#include "platform/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace glmd {

void hold_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free descriptor is this one. Where even /dev/null is missing, it stays closed.
    ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

Result<void> finish_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return error(ErrorKind::io, "standard output: {}",
               errno != 0 ? std::strerror(errno) : "an earlier write failed");
}

int finish_program(const char* name, int code) {
  const Result<void> finished = finish_output();
  if (finished.ok()) return code;
  std::fprintf(stderr, "%s: %s\n", name, finished.error().message.c_str());
  return code != 0 ? code : exit_code(finished.error().kind);
}

}  // namespace glmd
