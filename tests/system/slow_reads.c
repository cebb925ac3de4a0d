// Preloaded into a program: every pread() waits GLMD_TEST_READ_DELAY_MS first, as a slow disk would,
// and of files whose path begins with GLMD_TEST_HANGING for as long as the file GLMD_TEST_HANG_FLAG
// exists, as a disk that hangs; listen() waits GLMD_TEST_LISTEN_DELAY_MS, as on a machine that is
// busy at that moment.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void wait_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void wait_as_told(const char* variable) {
  const char* delay = getenv(variable);
  wait_ms(delay ? atol(delay) : 0);
}

static void hang_as_told(int descriptor) {
  const char *hanging = getenv("GLMD_TEST_HANGING"), *flag = getenv("GLMD_TEST_HANG_FLAG");
  if (hanging == NULL || flag == NULL) return;
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  if (readlink(link, path, sizeof path - 1) < 0) return;
  if (strncmp(path, hanging, strlen(hanging)) != 0) return;
  while (access(flag, F_OK) == 0) wait_ms(10);
}

ssize_t pread(int descriptor, void* target, size_t count, off_t offset) {
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "pread");
  wait_as_told("GLMD_TEST_READ_DELAY_MS");
  hang_as_told(descriptor);
  return next(descriptor, target, count, offset);
}

int listen(int descriptor, int backlog) {
  static int (*next)(int, int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "listen");
  wait_as_told("GLMD_TEST_LISTEN_DELAY_MS");
  return next(descriptor, backlog);
}
