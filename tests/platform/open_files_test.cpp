#include "platform/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "platform/file.h"

namespace glmd {
namespace {

// Each runs in a process of its own, whose limits nobody else has.

[[noreturn]] void open_many(rlimit limit, int count) {
  ::setrlimit(RLIMIT_NOFILE, &limit);
  raise_open_files_limit();
  std::vector<File> files;
  for (int i = 0; i < count; ++i) {
    Result<File> file = File::open_read_only("/proc/self/exe");
    if (!file.ok()) {
      std::fprintf(stderr, "%s\n", file.error().message.c_str());
      std::_Exit(exit_code(file.error().kind));
    }
    files.push_back(std::move(file).value());
  }
  std::_Exit(0);
}

TEST(OpenFiles, are_as_many_as_the_hard_limit_allows) {
  EXPECT_EXIT(open_many({.rlim_cur = 100, .rlim_max = 500}, 300), testing::ExitedWithCode(0), "");
}

TEST(OpenFiles, too_many_for_the_hard_limit_are_an_error_that_names_it) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer wants descriptors of its own to look at an object";
#endif
  EXPECT_EXIT(open_many({.rlim_cur = 100, .rlim_max = 200}, 300), testing::ExitedWithCode(74),
              "^/proc/self/exe: open: Too many open files: the limit is 200 "
              "\\(LimitNOFILE= of the unit, ulimit -Hn\\)\n$");
}

}  // namespace
}  // namespace glmd
