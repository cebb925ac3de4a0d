// Failures of the world (disk, file, peer) travel as values: Result<T> holds a T or an Error.
// A kind is there to branch on (an exit code, a reply code), a message is there to be read; each
// level that passes an error up may say what it was doing: `TRY_CONTEXT(read(x), "expert 7")`.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "platform/check.h"

namespace glmd {

enum class ErrorKind {
  usage,        // the caller of a program asked for something impossible
  bad_input,    // a file, a request or a model is malformed
  not_found,    // a named thing does not exist
  unavailable,  // the peer or device cannot be reached
  corrupt,      // a checksum does not match
  io,           // the operating system failed a read or a write
  no_memory,    // a memory plan, pool or limit has no room
  busy,         // try again later
  protocol,     // the peer broke the protocol
  denied,       // permission
  config,       // a setting is wrong
  cancelled,    // asked to stop
  timeout,      // the time that the caller set is up
  internal,     // a broken promise of ours that is not worth a crash
};

struct Error {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
};

// error(ErrorKind::bad_input, "{}: rows: wanted {}, got {}", path, wanted, got)
template <typename... Args>
[[nodiscard]] Error error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return Error{kind, fmt::format(format, std::forward<Args>(args)...)};
}

// The exit code of a program that ends with this error (sysexits.h; README, "Exit codes").
int exit_code(ErrorKind kind);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  T& value() & {
    CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CHECK(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  const Error& error() const& {
    CHECK(!ok());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    CHECK(!ok());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  void value() const { CHECK(ok()); }
  const Error& error() const& {
    CHECK(!ok());
    return *error_;
  }
  Error&& error() && {
    CHECK(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

inline Error with_context(Error error, std::string_view doing) {
  error.message = fmt::format("{}: {}", doing, error.message);
  return error;
}

}  // namespace glmd

// The value of a Result, or return its error from the enclosing function.
#define TRY(expression)                                           \
  __extension__({                                                 \
    auto try_result_ = (expression);                              \
    if (!try_result_.ok()) return std::move(try_result_).error(); \
    std::move(try_result_).value();                               \
  })

// The same, saying what was being done.
#define TRY_CONTEXT(expression, doing)                                                           \
  __extension__({                                                                                \
    auto try_result_ = (expression);                                                             \
    if (!try_result_.ok()) return ::glmd::with_context(std::move(try_result_).error(), (doing)); \
    std::move(try_result_).value();                                                              \
  })
