#include "protocol/words.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "protocol/limits.h"
#include "protocol/quoting.h"

namespace glmd::protocol {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

bool are_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

bool is_verb(std::string_view text) {
  return !text.empty() && std::ssize(text) <= verb_bytes_max &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

bool is_key(std::string_view text) {
  return !text.empty() && std::ssize(text) <= key_bytes_max && is_lower(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '_'; });
}

Fault bad_line(std::string message) {
  return {ErrorCode::bad_line, std::nullopt, std::move(message)};
}

bool is_control(char c) {
  return static_cast<uint8_t>(c) < 0x20 || c == 0x7F;
}

// The end of the word that starts at `begin`: the next space outside quotes.
size_t find_word_end(std::string_view line, size_t begin) {
  bool is_quoted = false;
  for (size_t index = begin; index < line.size(); ++index) {
    const char c = line[index];
    if (is_quoted && c == '\\') {
      ++index;
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ' ' && !is_quoted) {
      return index;
    }
  }
  return line.size();
}

std::optional<std::string> parse_value(std::string_view text) {
  if (!text.empty() && text.front() == '"') return unquote(text);
  if (is_token(text)) return std::string(text);
  return std::nullopt;
}

}  // namespace

const std::string* Words::find(std::string_view key) const {
  for (const auto& [name, value] : keys) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::variant<Words, Fault> parse_words(std::string_view line) {
  if (line.find('\r') != std::string_view::npos) return bad_line("lines end in LF, without CR");
  if (std::any_of(line.begin(), line.end(), is_control)) return bad_line("a control character");
  if (find_invalid_utf8(line)) return bad_line("not UTF-8");

  Words words;
  size_t begin = find_word_end(line, 0);
  if (!is_verb(line.substr(0, begin)))
    return bad_line("a line starts with a verb of 1 to 16 capitals");
  words.verb = line.substr(0, begin);
  while (begin < line.size()) {
    ++begin;  // the space
    const size_t end = find_word_end(line, begin);
    const std::string_view word = line.substr(begin, end - begin);
    begin = end;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      if (!is_token(word)) return bad_line("an empty or malformed word");
      words.positional.emplace_back(word);
      continue;
    }
    const std::string_view key = word.substr(0, equals);
    if (!is_key(key)) return bad_line("a malformed key");
    auto value = parse_value(word.substr(equals + 1));
    if (!value) return bad_line("the value of " + std::string(key) + " is malformed");
    words.keys.emplace_back(key, std::move(*value));
  }
  return words;
}

std::optional<uint64_t> parse_id(std::string_view text) {
  if (text.empty() || text.front() == '0') return std::nullopt;
  return parse_unsigned(text);
}

std::optional<int64_t> parse_number(std::string_view text) {
  if (!are_digits(text) || text.size() > 19) return std::nullopt;
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<uint64_t> parse_unsigned(std::string_view text) {
  if (!are_digits(text) || text.size() > 20) return std::nullopt;
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  const std::string_view magnitude = text.starts_with('-') ? text.substr(1) : text;
  const size_t point = magnitude.find('.');
  const std::string_view whole = magnitude.substr(0, point);
  if (!are_digits(whole) || whole.size() > 9) return std::nullopt;
  if (point != std::string_view::npos) {
    const std::string_view fraction = magnitude.substr(point + 1);
    if (!are_digits(fraction) || fraction.size() > 9) return std::nullopt;
  }
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

std::string format_real(double value) {
  std::array<char, 64> digits{};
  const double limited = std::clamp(value, -999'999'999.0, 999'999'999.0);
  if (limited != limited) return "0";  // nan has no spelling
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), limited,
                                    std::chars_format::fixed, 9);
  std::string text(digits.data(), result.ptr);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

}  // namespace glmd::protocol
