#include "platform/shortage.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "tests/support/refused_call.h"

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

TEST(Shortage, threads_that_a_filter_refuses_are_one_line_and_give_77) {
#if defined(SYS_clone3) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto start_a_thread = [] {
    end_on_shortage("program");
    if (!test::refuse_call(SYS_clone3, EPERM)) throw_in_a_thread(std::logic_error("no filters"));
    try {
      std::thread([] {}).join();
    } catch (...) {
      std::terminate();  // or the test catches it
    }
  };
  EXPECT_EXIT(start_a_thread(), testing::ExitedWithCode(77),
              "^program: threads: Operation not permitted [^\n]*\n$");
#else
  GTEST_SKIP() << "sanitizers have threads of their own";
#endif
}

TEST(Shortage, other_exceptions_still_abort) {
  EXPECT_EXIT(throw_in_a_thread(std::logic_error("a bug")), testing::KilledBySignal(SIGABRT),
              "a bug");
  EXPECT_EXIT(throw_in_a_thread(failure_of(std::errc::permission_denied)),
              testing::KilledBySignal(SIGABRT), "Permission denied");
  EXPECT_EXIT(throw_in_a_thread(failure_of(std::errc::operation_not_permitted)),
              testing::KilledBySignal(SIGABRT), "Operation not permitted");
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
