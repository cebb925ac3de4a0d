// A line taken apart: verb, positional words, key=value pairs in their order. Grammar only, no
// meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/error_code.h"

namespace glmd::protocol {

// What is wrong with a frame. `id` is set where the frame named one.
struct Fault {
  ErrorCode code = ErrorCode::bad_line;
  std::optional<uint64_t> id;
  std::string message;
  bool operator==(const Fault&) const = default;
};

struct Words {
  std::string verb;
  std::vector<std::string> positional;
  std::vector<std::pair<std::string, std::string>> keys;  // values unquoted

  const std::string* find(std::string_view key) const;  // the first, or nullptr
};

// `line` without its LF. The fault is bad_line.
std::variant<Words, Fault> parse_words(std::string_view line);

std::optional<uint64_t> parse_id(std::string_view text);        // not 0, no leading zero
std::optional<int64_t> parse_number(std::string_view text);     // 1 to 19 digits
std::optional<uint64_t> parse_unsigned(std::string_view text);  // all of 64 bits
std::optional<double> parse_real(std::string_view text);        // no exponent, no nan
std::string format_real(double value);  // parse_real's inverse to 9 decimals

}  // namespace glmd::protocol
