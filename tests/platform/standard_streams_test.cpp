#include "platform/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace glmd {
namespace {

// Each runs in a process of its own, which gives up its streams and tells by its exit code.

[[noreturn]] void open_a_file_without_streams() {
  ::close(STDIN_FILENO);
  ::close(STDOUT_FILENO);
  ::close(STDERR_FILENO);
  hold_standard_streams();
  const int next = ::open("/dev/null", O_RDWR);
  char byte = 'x';
  const bool is_unwritable = ::write(STDOUT_FILENO, &byte, 1) < 0 && errno == EBADF;
  const bool is_unreadable = ::read(STDIN_FILENO, &byte, 1) < 0 && errno == EBADF;
  std::_Exit(next > STDERR_FILENO && is_unwritable && is_unreadable ? 0 : 1);
}

TEST(StandardStreams, a_closed_one_is_held_and_still_fails_when_used) {
  EXPECT_EXIT(open_a_file_without_streams(), testing::ExitedWithCode(0), "");
}

[[noreturn]] void write_to(const char* path, int code) {
  ::dup2(::open(path, O_WRONLY), STDOUT_FILENO);
  std::fputs("lost\n", stdout);
  std::_Exit(finish_program("program", code));
}

TEST(StandardStreams, lost_output_is_told_and_gives_74) {
  EXPECT_EXIT(write_to("/dev/full", 0), testing::ExitedWithCode(74),
              "program: standard output: No space left on device");
}

TEST(StandardStreams, lost_output_does_not_hide_an_earlier_failure) {
  EXPECT_EXIT(write_to("/dev/full", 65), testing::ExitedWithCode(65), "standard output");
}

TEST(StandardStreams, written_output_changes_no_exit_code) {
  EXPECT_EXIT(write_to("/dev/null", 3), testing::ExitedWithCode(3), "^$");
}

[[noreturn]] void write_twice_to_a_full_device() {
  ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
  std::fputs("lost\n", stdout);
  std::fflush(stdout);
  std::_Exit(finish_program("program", 0));
}

TEST(StandardStreams, an_earlier_lost_write_is_not_forgotten) {
  EXPECT_EXIT(write_twice_to_a_full_device(), testing::ExitedWithCode(74), "standard output: ");
}

}  // namespace
}  // namespace glmd
