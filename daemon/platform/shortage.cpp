#include "platform/shortage.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace glmd {
namespace {

const char* program_name = "";
std::terminate_handler handler_before = nullptr;

// Of the exception being handled; null for any that is no shortage. Takes no memory.
const char* shortage_text() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "memory: Cannot allocate memory (LimitAS= of the unit, ulimit -v, "
           "vm.overcommit_memory)";
  } catch (const std::system_error& failure) {
    if (failure.code() != std::errc::resource_unavailable_try_again) return nullptr;
    return "threads: Resource temporarily unavailable (LimitNPROC=, TasksMax= of the unit, "
           "ulimit -u)";
  } catch (...) {
    return nullptr;
  }
}

[[noreturn]] void end_program_on_shortage() {
  const char* text = std::current_exception() ? shortage_text() : nullptr;
  if (text == nullptr) {
    handler_before();
    std::abort();
  }
  std::fprintf(stderr, "%s: %s\n", program_name, text);
  std::_Exit(exit_code(ErrorKind::no_memory));  // other threads go on until here
}

}  // namespace

void end_on_shortage(const char* program) {
  program_name = program;
  handler_before = std::set_terminate(end_program_on_shortage);
}

std::optional<Error> caught_shortage() {
  const char* text = shortage_text();
  if (text == nullptr) return std::nullopt;
  return error(ErrorKind::no_memory, "{}", text);
}

}  // namespace glmd
