// Preloaded into a program: every pread() waits GLMD_TEST_READ_DELAY_MS first, as a slow disk would,
// and listen() GLMD_TEST_LISTEN_DELAY_MS, as on a machine that is busy at that moment.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void wait_as_told(const char* variable) {
  const char* delay = getenv(variable);
  const long ms = delay ? atol(delay) : 0;
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

ssize_t pread(int descriptor, void* target, size_t count, off_t offset) {
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "pread");
  wait_as_told("GLMD_TEST_READ_DELAY_MS");
  return next(descriptor, target, count, offset);
}

int listen(int descriptor, int backlog) {
  static int (*next)(int, int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "listen");
  wait_as_told("GLMD_TEST_LISTEN_DELAY_MS");
  return next(descriptor, backlog);
}
