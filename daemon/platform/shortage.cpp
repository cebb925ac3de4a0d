#include "platform/shortage.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace glmd {
namespace {

const char* program_name = "";
std::terminate_handler handler_before = nullptr;

struct Shortage {
  const char* text = nullptr;  // null: none
  ErrorKind kind = ErrorKind::no_memory;
};

// Others throw this code as well, for a bug: only an attempt tells.
bool is_any_thread_refused() {
  pthread_t thread;
  if (::pthread_create(
          &thread, nullptr, [](void* none) { return none; }, nullptr) != 0)
    return true;
  ::pthread_join(thread, nullptr);
  return false;
}

// Of the exception being handled. Takes no memory.
Shortage find_shortage() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {
        "memory: Cannot allocate memory (LimitAS= of the unit, ulimit -v, "
        "vm.overcommit_memory)"};
  } catch (const std::system_error& failure) {
    if (failure.code() == std::errc::resource_unavailable_try_again) {
      return {
          "threads: Resource temporarily unavailable (LimitNPROC=, TasksMax= of the unit, "
          "ulimit -u)"};
    }
    if (failure.code() == std::errc::operation_not_permitted && is_any_thread_refused()) {
      return {
          "threads: Operation not permitted (a filter of system calls that is older than "
          "clone3, as of old container runtimes)",
          ErrorKind::denied};
    }
    return {};
  } catch (...) {
    return {};
  }
}

[[noreturn]] void end_program_on_shortage() {
  const Shortage shortage = std::current_exception() ? find_shortage() : Shortage();
  if (shortage.text == nullptr) {
    handler_before();
    std::abort();
  }
  std::fprintf(stderr, "%s: %s\n", program_name, shortage.text);
  std::_Exit(exit_code(shortage.kind));  // other threads go on until here
}

}  // namespace

void end_on_shortage(const char* program) {
  program_name = program;
  handler_before = std::set_terminate(end_program_on_shortage);
}

std::optional<Error> caught_shortage() {
  const Shortage shortage = find_shortage();
  if (shortage.text == nullptr) return std::nullopt;
  return error(shortage.kind, "{}", shortage.text);
}

}  // namespace glmd
