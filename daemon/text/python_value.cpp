#include "text/python_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "text/unicode.h"

namespace glmd {

bool is_truthy(const Json* value) {
  if (value == nullptr) return false;
  switch (value->type()) {
    case Json::Type::null:
      return false;
    case Json::Type::boolean:
      return value->as_boolean();
    case Json::Type::integer:
      return value->as_integer() != 0;
    case Json::Type::big_integer:
      return true;
    case Json::Type::real:
      return value->as_real() != 0;
    case Json::Type::string:
      return !value->as_string().empty();
    case Json::Type::array:
      return !value->items().empty();
    case Json::Type::object:
      return !value->members().empty();
  }
  return false;
}

std::vector<std::pair<std::string_view, const Json*>> python_items(const Json& object) {
  std::vector<std::pair<std::string_view, const Json*>> items;
  std::unordered_map<std::string_view, size_t> places;
  for (const auto& [name, value] : object.members()) {
    const auto [place, is_new] = places.emplace(name, items.size());
    if (is_new) {
      items.emplace_back(name, &value);
    } else {
      items[place->second].second = &value;
    }
  }
  return items;
}

namespace {

// repr() of a float: the shortest digits that read back the same; an exponent below 1e-4 and from
// 1e16 on.
std::string repr_real(double value) {
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, end.ptr - buffer);  // -d.ddde+XX
  const size_t exponent_at = text.find('e');
  if (exponent_at == std::string_view::npos) return std::string(text);
  const int exponent = std::atoi(std::string(text.substr(exponent_at + 1)).c_str());
  std::string_view mantissa = text.substr(0, exponent_at);
  if (exponent < -4 || exponent >= 16) return std::string(text);

  std::string out;
  if (mantissa.starts_with('-')) {
    out = "-";
    mantissa.remove_prefix(1);
  }
  std::string digits(mantissa.substr(0, 1));
  if (mantissa.size() > 2) digits += mantissa.substr(2);
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  const auto whole_digits = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole_digits) {
    return out + digits + std::string(whole_digits - digits.size(), '0') + ".0";
  }
  return out + digits.substr(0, whole_digits) + "." + digits.substr(whole_digits);
}

void append_repr_string(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char32_t quote = has_single && !has_double ? '"' : '\'';
  out += static_cast<char>(quote);
  for (size_t index = 0; index < text.size();) {
    const DecodedCharacter character = decode_utf8(text, index);
    const std::string_view bytes = text.substr(index, character.bytes);
    index += character.bytes;
    const auto code = static_cast<uint32_t>(character.code_point);
    if (code == quote || code == '\\') {
      out += '\\';
      out += bytes;
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(character.code_point)) {
      out += bytes;
    } else if (code <= 0xff) {
      out += fmt::format("\\x{:02x}", code);
    } else if (code <= 0xffff) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\U{:08x}", code);
    }
  }
  out += static_cast<char>(quote);
}

// The two ways of Python to write a value down differ in their words, not in their punctuation.
struct Notation {
  std::string_view null_word;
  std::string_view true_word;
  std::string_view false_word;
  std::string_view infinity_word;
  void (*append_string)(std::string& out, std::string_view text);
};

constexpr Notation repr_notation{"None", "True", "False", "inf", append_repr_string};
constexpr Notation json_notation{"null", "true", "false", "Infinity", append_json_string};

void append_real(std::string& out, double value, const Notation& notation) {
  if (std::isinf(value)) {
    if (value < 0) out += '-';
    out += notation.infinity_word;
  } else {
    out += repr_real(value);
  }
}

void append_value(std::string& out, const Json& value, const Notation& notation) {
  std::string_view separator;
  switch (value.type()) {
    case Json::Type::null:
      out += notation.null_word;
      break;
    case Json::Type::boolean:
      out += value.as_boolean() ? notation.true_word : notation.false_word;
      break;
    case Json::Type::integer:
      out += std::to_string(value.as_integer());
      break;
    case Json::Type::big_integer:
      out += value.as_digits();
      break;
    case Json::Type::real:
      append_real(out, value.as_real(), notation);
      break;
    case Json::Type::string:
      notation.append_string(out, value.as_string());
      break;
    case Json::Type::array:
      out += '[';
      for (const Json& item : value.items()) {
        out += std::exchange(separator, ", ");
        append_value(out, item, notation);
      }
      out += ']';
      break;
    case Json::Type::object:
      out += '{';
      for (const auto& [name, item] : python_items(value)) {
        out += std::exchange(separator, ", ");
        notation.append_string(out, name);
        out += ": ";
        append_value(out, *item, notation);
      }
      out += '}';
      break;
  }
}

// Python compares an integer with a float exactly, not after rounding: a whole float is written
// with all its digits, -0.0 as 0. Any other has a point or an exponent, so it is no integer's text.
std::string real_key(double value) {
  const bool is_whole = std::isfinite(value) && value == std::trunc(value);
  return is_whole ? fmt::format("{:.0f}", value + 0.0) : repr_real(value);
}

void append_key(std::string& out, const Json& value) {
  switch (value.type()) {
    case Json::Type::null:
      out += "null";
      break;
    case Json::Type::boolean:
      out += value.as_boolean() ? '1' : '0';
      break;
    case Json::Type::integer:
      out += std::to_string(value.as_integer());
      break;
    case Json::Type::big_integer:
      out += value.as_digits();
      break;
    case Json::Type::real:
      out += real_key(value.as_real());
      break;
    case Json::Type::string:
      append_json_string(out, value.as_string());
      break;
    case Json::Type::array:
      out += '[';
      for (const Json& item : value.items()) {
        append_key(out, item);
        out += ',';
      }
      out += ']';
      break;
    case Json::Type::object: {
      auto items = python_items(value);
      std::sort(items.begin(), items.end());
      out += '{';
      for (const auto& [name, item] : items) {
        append_json_string(out, name);
        out += ':';
        append_key(out, *item);
        out += ',';
      }
      out += '}';
      break;
    }
  }
}

}  // namespace

std::string python_key(const Json* value) {
  std::string out;
  if (value != nullptr) append_key(out, *value);
  return out;
}

std::string python_str(const Json* value) {
  std::string out;
  if (value == nullptr) return out;
  if (value->is_string()) return value->as_string();
  append_value(out, *value, repr_notation);
  return out;
}

std::string python_json_dumps(const Json& value) {
  std::string out;
  append_value(out, value, json_notation);
  return out;
}

std::string_view python_strip(std::string_view text) {
  size_t begin = text.size();
  size_t end = text.size();
  bool is_inside = false;
  for (size_t index = 0; index < text.size();) {
    const DecodedCharacter character = decode_utf8(text, index);
    const size_t after = index + character.bytes;
    const bool is_separator = character.code_point >= 0x1c && character.code_point <= 0x1f;
    if (!is_separator && classify(character.code_point) != CharacterClass::space) {
      if (!is_inside) begin = index;
      is_inside = true;
      end = after;
    }
    index = after;
  }
  return text.substr(begin, end - begin);
}

}  // namespace glmd
