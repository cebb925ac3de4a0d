// The codes of ERROR frames. After bad_line, bad_frame and too_long the server closes the
// connection; after all others it lives.
#pragma once

#include <string_view>

namespace glmd::protocol {

enum class ErrorCode {
  bad_line,
  bad_frame,
  too_long,
  too_large,
  bad_value,
  unknown_verb,
  version,
  denied,
  duplicate_id,
  not_found,
  loading,
  draining,
  queue_full,
  queue_timeout,
  deadline,
  slot_busy,
  slot_bad,
  empty_prompt,
  context_exceeded,
  grammar,
  cancelled,
  slow_client,
  engine,
  internal,
  unknown,  // a code of a later version, as a client sees it; never sent
};

std::string_view to_string(ErrorCode code);        // "BAD_LINE"
ErrorCode error_code_from(std::string_view name);  // `unknown` for other names
bool closes_connection(ErrorCode code);

}  // namespace glmd::protocol
