#include "platform/json.h"

#include <simdjson.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "platform/file.h"

namespace glmd {

Json Json::boolean(bool value) {
  return {std::in_place_type<bool>, value};
}

Json Json::integer(int64_t value) {
  return {std::in_place_type<int64_t>, value};
}

Json Json::big_integer(std::string digits) {
  return {std::in_place_type<BigInteger>, BigInteger{std::move(digits)}};
}

Json Json::real(double value) {
  return {std::in_place_type<double>, value};
}

Json Json::string(std::string value) {
  return {std::in_place_type<std::string>, std::move(value)};
}

Json Json::array(std::vector<Json> items) {
  return {std::in_place_type<std::vector<Json>>, std::move(items)};
}

Json Json::object(std::vector<Member> members) {
  return {std::in_place_type<std::vector<Member>>, std::move(members)};
}

Json::Type Json::type() const {
  if (is_null()) return Type::null;
  if (is_boolean()) return Type::boolean;
  if (is_integer()) return Type::integer;
  if (is_big_integer()) return Type::big_integer;
  if (is_number()) return Type::real;
  if (is_string()) return Type::string;
  return is_array() ? Type::array : Type::object;
}

double Json::as_real() const {
  if (holds<double>()) return get<double>();
  return is_big_integer() ? std::strtod(as_digits().c_str(), nullptr)
                          : static_cast<double>(as_integer());
}

const Json* Json::find(std::string_view name) const {
  if (!is_object()) return nullptr;
  for (auto member = members().rbegin(); member != members().rend(); ++member) {
    if (member->first == name) return &member->second;
  }
  return nullptr;
}

void Json::set(std::string name, Json value) {
  for (auto member = members().rbegin(); member != members().rend(); ++member) {
    if (member->first == name) {
      member->second = std::move(value);
      return;
    }
  }
  members().emplace_back(std::move(name), std::move(value));
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char character : text) {
    switch (character) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(character) < 0x20) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}",
                         static_cast<unsigned char>(character));
        } else {
          out += character;
        }
    }
  }
  out += '"';
}

namespace {

void append_real(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";  // JSON has no other word for it
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, end.ptr);
}

void append(std::string& out, const Json& json) {
  switch (json.type()) {
    case Json::Type::null:
      out += "null";
      break;
    case Json::Type::boolean:
      out += json.as_boolean() ? "true" : "false";
      break;
    case Json::Type::integer:
      out += std::to_string(json.as_integer());
      break;
    case Json::Type::big_integer:
      out += json.as_digits();
      break;
    case Json::Type::real:
      append_real(out, json.as_real());
      break;
    case Json::Type::string:
      append_json_string(out, json.as_string());
      break;
    case Json::Type::array: {
      out += '[';
      bool first = true;
      for (const Json& item : json.items()) {
        if (!first) out += ',';
        first = false;
        append(out, item);
      }
      out += ']';
      break;
    }
    case Json::Type::object: {
      out += '{';
      bool first = true;
      for (const auto& [name, value] : json.members()) {
        if (!first) out += ',';
        first = false;
        append_json_string(out, name);
        out += ':';
        append(out, value);
      }
      out += '}';
      break;
    }
  }
}

}  // namespace

std::string Json::to_string() const {
  std::string out;
  append(out, *this);
  return out;
}

namespace {

std::string shown_text(std::string_view text) {
  return text.size() > 60 ? std::string(text.substr(0, 57)) + "..." : std::string(text);
}

// Where the string ends that begins at `begin`: after its closing quote, or with the text.
size_t string_end(std::string_view text, size_t begin) {
  size_t at = begin + 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

// The numbers of a text in their order: what stands outside strings and looks like one.
class NumberTokens {
 public:
  explicit NumberTokens(std::string_view text) : text_(text) {}

  // Empty after the last one.
  std::string_view next() {
    while (at_ < text_.size() && !begins_number(text_[at_])) {
      at_ = text_[at_] == '"' ? string_end(text_, at_) : at_ + 1;
    }
    const size_t begin = at_;
    while (at_ < text_.size() && continues_number(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

 private:
  static bool begins_number(char c) { return (c >= '0' && c <= '9') || c == '-'; }
  static bool continues_number(char c) {
    return begins_number(c) || c == '+' || c == '.' || c == 'e' || c == 'E';
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json read_integer(std::string_view token) {
  int64_t value = 0;
  const auto read = std::from_chars(token.data(), token.data() + token.size(), value);
  return read.ec == std::errc() ? Json::integer(value) : Json::big_integer(std::string(token));
}

Json read_real(std::string_view token) {
  double value = 0;
  const auto read = std::from_chars(token.data(), token.data() + token.size(), value);
  // Too large or too small: strtod tells which.
  if (read.ec != std::errc()) value = std::strtod(std::string(token).c_str(), nullptr);
  return Json::real(value);
}

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
std::optional<Json> read_number(std::string_view token) {
  size_t at = 0;
  const auto take = [&](std::string_view any) {
    const bool is_there = at < token.size() && any.find(token[at]) != std::string_view::npos;
    at += is_there ? 1 : 0;
    return is_there;
  };
  const auto take_digits = [&] {
    const size_t begin = at;
    while (take("0123456789")) continue;
    return at - begin;
  };
  take("-");
  const bool begins_with_zero = token.substr(at).starts_with('0');
  const size_t whole_digits = take_digits();
  if (whole_digits == 0 || (begins_with_zero && whole_digits > 1)) return {};
  const bool has_point = take(".");
  if (has_point && take_digits() == 0) return {};
  const bool has_exponent = take("eE");
  if (has_exponent) take("+-");
  if (has_exponent && take_digits() == 0) return {};
  if (at != token.size()) return {};
  return has_point || has_exponent ? read_real(token) : read_integer(token);
}

// Copies simdjson's tape into values, with the numbers of the text.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : numbers_(text) {}

  Json copy(const simdjson::dom::element& element) {
    using simdjson::dom::element_type;
    switch (element.type()) {
      case element_type::NULL_VALUE:
        return Json();
      case element_type::BOOL:
        return Json::boolean(element.get_bool().value_unsafe());
      case element_type::INT64:
      case element_type::UINT64:
      case element_type::DOUBLE:
        return read_number(numbers_.next()).value();
      case element_type::STRING:
        return Json::string(std::string(element.get_string().value_unsafe()));
      case element_type::ARRAY: {
        std::vector<Json> items;
        const simdjson::dom::array array(element);
        items.reserve(array.size());
        for (const auto item : array) items.push_back(copy(item));
        return Json::array(std::move(items));
      }
      case element_type::OBJECT: {
        std::vector<Json::Member> members;
        const simdjson::dom::object object(element);
        members.reserve(object.size());
        for (const auto field : object) {
          members.emplace_back(std::string(field.key), copy(field.value));
        }
        return Json::object(std::move(members));
      }
    }
    return Json();
  }

 private:
  NumberTokens numbers_;
};

// simdjson refuses numbers beyond 64 bits, so it is shown a 0 and spaces in the place of each.
Result<void> blank_numbers(std::string_view text, char* copy) {
  NumberTokens numbers(text);
  for (std::string_view token = numbers.next(); !token.empty(); token = numbers.next()) {
    const auto offset = static_cast<size_t>(token.data() - text.data());
    if (!read_number(token)) {
      return error(ErrorKind::bad_input, "not valid JSON: at byte {}: {} is not a number", offset,
                   shown_text(token));
    }
    std::fill_n(copy + offset, token.size(), ' ');
    copy[offset] = '0';
  }
  return {};
}

// Of \uXXXX at `at`; nothing where there is none.
std::optional<uint32_t> code_unit(std::string_view text, size_t at) {
  if (!text.substr(at).starts_with("\\u") || text.size() < at + 6) return {};
  uint32_t unit = 0;
  const char* end = text.data() + at + 6;
  const auto read = std::from_chars(text.data() + at + 2, end, unit, 16);
  return read.ec == std::errc() && read.ptr == end ? std::optional(unit) : std::nullopt;
}

// The bytes of the escape at `at`, 0 where it stands for nothing.
size_t escape_bytes(std::string_view text, size_t at) {
  const std::optional<uint32_t> unit = code_unit(text, at);
  if (!unit) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    return at + 1 < text.size() && letters.find(text[at + 1]) != std::string_view::npos ? 2 : 0;
  }
  if (*unit < 0xd800 || *unit > 0xdfff) return 6;
  const uint32_t low = code_unit(text, at + 6).value_or(0);
  return *unit <= 0xdbff && low >= 0xdc00 && low <= 0xdfff ? 12 : 0;
}

// What is wrong in a text in which simdjson did not like a string.
std::string string_fault(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    if (text[begin] != '"') {
      ++begin;
      continue;
    }
    const size_t end = string_end(text, begin);
    for (size_t at = begin + 1; at < end;) {
      const size_t bytes = text[at] == '\\' ? escape_bytes(text, at) : 1;
      if (bytes > 0) {
        at += bytes;
      } else if (code_unit(text, at)) {
        return fmt::format("at byte {}: {} is half a surrogate pair, which is no character", at,
                           text.substr(at, 6));
      } else {
        return fmt::format("at byte {}: an escape that JSON does not have", at);
      }
    }
    begin = end;
  }
  return simdjson::error_message(simdjson::STRING_ERROR);
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, int depth_max) {
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<size_t>(text.size(), 1), static_cast<size_t>(depth_max)) !=
      simdjson::SUCCESS) {
    return error(ErrorKind::no_memory, "{}: no memory to parse {} bytes of JSON", what,
                 text.size());
  }
  simdjson::padded_string padded(text);
  TRY_CONTEXT(blank_numbers(text, padded.data()), what);
  simdjson::dom::element root;
  const simdjson::error_code code = parser.parse(padded).get(root);
  if (code == simdjson::DEPTH_ERROR || code == simdjson::CAPACITY) {
    return error(ErrorKind::bad_input, "{}: JSON is nested deeper than {} levels or too large",
                 what, depth_max);
  }
  if (code != simdjson::SUCCESS) {
    return error(
        ErrorKind::bad_input, "{}: not valid JSON: {}", what,
        code == simdjson::STRING_ERROR ? string_fault(text) : simdjson::error_message(code));
  }
  return JsonReader(text).copy(root);
}

Result<Json> read_json_file(const std::string& path, int64_t bytes_max) {
  const std::string text = TRY(read_file(path, bytes_max));
  return parse_json(text, path);
}

Error wrong_value(std::string_view what, std::string_view name, std::string_view wanted,
                  const Json* got) {
  return error(ErrorKind::bad_input, "{}: {}: wanted {}, got {}", what, name, wanted, shown(got));
}

std::string shown(const Json* value) {
  if (value == nullptr) return "nothing";
  return shown_text(value->to_string());
}

}  // namespace glmd
