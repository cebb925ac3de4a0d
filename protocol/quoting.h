// Values of keys: bare tokens where they can be, otherwise quoted. Also the UTF-8 check that both
// need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace glmd::protocol {

// Printable ASCII without space, `"`, `=` and `\`, and well-formed UTF-8 beyond ASCII; not empty.
bool is_token(std::string_view text);

// The index of the first byte that is not well-formed UTF-8 (RFC 3629: no surrogates, nothing
// overlong).
std::optional<int64_t> find_invalid_utf8(std::string_view text);

// `text` as a token where it is one, otherwise between quotes. Any bytes survive the round trip.
std::string quote_if_needed(std::string_view text);
std::string quote(std::string_view text);

// The text between the quotes of `quoted` (with them), or nothing where it is malformed.
std::optional<std::string> unquote(std::string_view quoted);

}  // namespace glmd::protocol
