// Preloaded into a program: every pread() waits GLMD_TEST_READ_DELAY_MS first, as a slow disk would.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(void) {
  const char* delay = getenv("GLMD_TEST_READ_DELAY_MS");
  const long ms = delay ? atol(delay) : 0;
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

ssize_t pread(int descriptor, void* target, size_t count, off_t offset) {
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "pread");
  wait_for_disk();
  return next(descriptor, target, count, offset);
}
