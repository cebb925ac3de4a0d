#include "platform/json.h"

#include <simdjson.h>

#include <charconv>
#include <cmath>

#include "platform/file.h"

namespace glmd {

Json Json::boolean(bool value) {
  return {std::in_place_type<bool>, value};
}

Json Json::integer(int64_t value) {
  return {std::in_place_type<int64_t>, value};
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
  if (is_number()) return Type::real;
  if (is_string()) return Type::string;
  return is_array() ? Type::array : Type::object;
}

int64_t Json::as_integer() const {
  return is_unsigned_above_int64() ? static_cast<int64_t>(get<uint64_t>()) : get<int64_t>();
}

double Json::as_real() const {
  if (holds<double>()) return get<double>();
  return is_unsigned_above_int64() ? static_cast<double>(get<uint64_t>())
                                   : static_cast<double>(get<int64_t>());
}

const Json* Json::find(std::string_view name) const {
  if (!is_object()) return nullptr;
  for (auto member = members().rbegin(); member != members().rend(); ++member) {
    if (member->first == name) return &member->second;
  }
  return nullptr;
}

void Json::set(std::string name, Json value) {
  for (Member& member : members()) {
    if (member.first == name) {
      member.second = std::move(value);
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
      out += json.is_unsigned_above_int64()
                 ? std::to_string(static_cast<uint64_t>(json.as_integer()))
                 : std::to_string(json.as_integer());
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

// Copies simdjson's tape into values.
class JsonReader {
 public:
  static Json copy(const simdjson::dom::element& element) {
    using simdjson::dom::element_type;
    switch (element.type()) {
      case element_type::NULL_VALUE:
        return Json();
      case element_type::BOOL:
        return Json::boolean(element.get_bool().value_unsafe());
      case element_type::INT64:
        return Json::integer(element.get_int64().value_unsafe());
      case element_type::UINT64:  // only what int64 does not hold
        return {std::in_place_type<uint64_t>, element.get_uint64().value_unsafe()};
      case element_type::DOUBLE:
        return Json::real(element.get_double().value_unsafe());
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
};

Result<Json> parse_json(std::string_view text, std::string_view what, int depth_max) {
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<size_t>(text.size(), 1), static_cast<size_t>(depth_max)) !=
      simdjson::SUCCESS) {
    return error(ErrorKind::no_memory, "{}: no memory to parse {} bytes of JSON", what,
                 text.size());
  }
  const simdjson::padded_string padded(text);
  simdjson::dom::element root;
  const simdjson::error_code code = parser.parse(padded).get(root);
  if (code == simdjson::DEPTH_ERROR || code == simdjson::CAPACITY) {
    return error(ErrorKind::bad_input, "{}: JSON is nested deeper than {} levels or too large",
                 what, depth_max);
  }
  if (code != simdjson::SUCCESS) {
    return error(ErrorKind::bad_input, "{}: not valid JSON: {}", what,
                 simdjson::error_message(code));
  }
  return JsonReader::copy(root);
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
  std::string text = value->to_string();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace glmd
