// The program's code stays in memory.
#include "platform/program_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

namespace glmd {
namespace {

// "Locked:" of the mapping that holds `address`, in KiB.
int64_t locked_kib(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0, end = 0;
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      is_inside = begin <= wanted && wanted < end;
    } else if (is_inside && std::sscanf(line.c_str(), "Locked: %" SCNd64, &kib) == 1) {
      return kib;
    }
  }
  return -1;
}

TEST(ProgramMemory, code_of_the_program_and_of_its_libraries_is_locked) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer makes mlock do nothing";
#endif
  const bool is_whole = lock_program();
  EXPECT_GT(locked_kib(reinterpret_cast<const void*>(&lock_program)), 0);
  if (is_whole) {
    EXPECT_GT(locked_kib(reinterpret_cast<const void*>(&std::sscanf)), 0);
  }
  munlockall();
  EXPECT_EQ(locked_kib(reinterpret_cast<const void*>(&lock_program)), 0);
}

}  // namespace
}  // namespace glmd
