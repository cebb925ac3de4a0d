#include "platform/shortage.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace glmd {
namespace {

// Each runs in a process of its own, which ends by what is thrown.

template <typename Exception>
void throw_in_a_thread(const Exception& exception) {
  end_on_shortage("program");
  std::thread([&] { throw exception; }).join();
}

std::system_error failure_of(std::errc code) {
  return std::system_error(std::make_error_code(code));
}

TEST(Shortage, of_memory_is_one_line_and_gives_75_in_any_thread) {
  EXPECT_EXIT(throw_in_a_thread(std::bad_alloc()), testing::ExitedWithCode(75),
              "^program: memory: Cannot allocate memory [^\n]*\n$");
}

TEST(Shortage, of_threads_is_one_line_and_gives_75) {
  EXPECT_EXIT(throw_in_a_thread(failure_of(std::errc::resource_unavailable_try_again)),
              testing::ExitedWithCode(75),
              "^program: threads: Resource temporarily unavailable [^\n]*\n$");
}

TEST(Shortage, other_exceptions_still_abort) {
  EXPECT_EXIT(throw_in_a_thread(std::logic_error("a bug")), testing::KilledBySignal(SIGABRT),
              "a bug");
  EXPECT_EXIT(throw_in_a_thread(failure_of(std::errc::permission_denied)),
              testing::KilledBySignal(SIGABRT), "Permission denied");
}

TEST(Shortage, caught_it_is_an_error_and_a_bug_is_none) {
  std::optional<Error> shortage;
  try {
    throw std::bad_alloc();
  } catch (...) {
    shortage = caught_shortage();
  }
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->kind, ErrorKind::no_memory);
  try {
    throw std::logic_error("a bug");
  } catch (...) {
    shortage = caught_shortage();
  }
  EXPECT_FALSE(shortage);
}

}  // namespace
}  // namespace glmd
