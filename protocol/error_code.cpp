#include "protocol/error_code.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace glmd::protocol {
namespace {

// In the order of the enumeration.
constexpr std::array<std::string_view, 25> names = {
    "BAD_LINE",     "BAD_FRAME",   "TOO_LONG",     "TOO_LARGE",        "BAD_VALUE",
    "UNKNOWN_VERB", "VERSION",     "DENIED",       "DUPLICATE_ID",     "NOT_FOUND",
    "LOADING",      "DRAINING",    "QUEUE_FULL",   "QUEUE_TIMEOUT",    "DEADLINE",
    "SLOT_BUSY",    "SLOT_BAD",    "EMPTY_PROMPT", "CONTEXT_EXCEEDED", "GRAMMAR",
    "CANCELLED",    "SLOW_CLIENT", "ENGINE",       "INTERNAL",         "UNKNOWN"};

}  // namespace

std::string_view to_string(ErrorCode code) {
  return names[static_cast<size_t>(code)];
}

ErrorCode error_code_from(std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return ErrorCode::unknown;
  return static_cast<ErrorCode>(found - names.begin());
}

bool closes_connection(ErrorCode code) {
  return code == ErrorCode::bad_line || code == ErrorCode::bad_frame || code == ErrorCode::too_long;
}

}  // namespace glmd::protocol
