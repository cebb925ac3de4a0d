#include "protocol/quoting.h"

#include <cstddef>

namespace glmd::protocol {
namespace {

uint8_t byte_at(std::string_view text, size_t index) {
  return static_cast<uint8_t>(text[index]);
}

// The length of the well-formed sequence at `index`, or 0 (RFC 3629, section 4).
size_t utf8_sequence_bytes(std::string_view text, size_t index) {
  const uint8_t first = byte_at(text, index);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint8_t second_min = 0x80, second_max = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) second_min = 0xA0;
    if (first == 0xED) second_max = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) second_min = 0x90;
    if (first == 0xF4) second_max = 0x8F;
  } else {
    return 0;
  }
  if (text.size() - index < length) return 0;
  const uint8_t second = byte_at(text, index + 1);
  if (second < second_min || second > second_max) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte_at(text, index + i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

bool is_token_byte(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return byte > 0x20 && byte != 0x7F && c != '"' && c != '=' && c != '\\';
}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

void append_hex_escape(std::string& out, char c) {
  constexpr std::string_view digits = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(c);
  out += "\\x";
  out += digits[byte >> 4];
  out += digits[byte & 15];
}

}  // namespace

bool is_token(std::string_view text) {
  if (text.empty() || find_invalid_utf8(text)) return false;
  for (const char c : text) {
    if (!is_token_byte(c)) return false;
  }
  return true;
}

std::optional<int64_t> find_invalid_utf8(std::string_view text) {
  for (size_t index = 0; index < text.size();) {
    const size_t length = utf8_sequence_bytes(text, index);
    if (length == 0) return static_cast<int64_t>(index);
    index += length;
  }
  return std::nullopt;
}

std::string quote_if_needed(std::string_view text) {
  return is_token(text) ? std::string(text) : quote(text);
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (size_t index = 0; index < text.size();) {
    const char c = text[index];
    const size_t length = utf8_sequence_bytes(text, index);
    if (length > 1) {
      out += text.substr(index, length);
      index += length;
      continue;
    }
    ++index;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (length == 0 || static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      append_hex_escape(out, c);
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::optional<std::string> unquote(std::string_view quoted) {
  if (quoted.size() < 2 || quoted.front() != '"' || quoted.back() != '"') return std::nullopt;
  const std::string_view inner = quoted.substr(1, quoted.size() - 2);
  std::string out;
  for (size_t index = 0; index < inner.size(); ++index) {
    const char c = inner[index];
    if (c == '"') return std::nullopt;
    if (c != '\\') {
      out += c;
      continue;
    }
    if (++index == inner.size()) return std::nullopt;  // the closing quote itself was escaped
    const char escaped = inner[index];
    if (escaped == '"' || escaped == '\\') {
      out += escaped;
    } else if (escaped == 'n') {
      out += '\n';
    } else if (escaped == 't') {
      out += '\t';
    } else if (escaped == 'x' && inner.size() - index > 2) {
      const auto high = hex_digit(inner[index + 1]);
      const auto low = hex_digit(inner[index + 2]);
      if (!high || !low) return std::nullopt;
      out += static_cast<char>(*high * 16 + *low);
      index += 2;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace glmd::protocol
