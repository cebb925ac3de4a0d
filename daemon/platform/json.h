// JSON: simdjson reads (untrusted text, bounded depth), values keep the order of their keys and the
// text of their numbers; a small writer prints. Not for hot paths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/result.h"

namespace glmd {

class Json {
 public:
  enum class Type { null, boolean, integer, real, string, array, object };
  using Member = std::pair<std::string, Json>;

  Json() = default;
  static Json boolean(bool value);
  static Json integer(int64_t value);
  static Json real(double value);
  static Json string(std::string value);
  static Json array(std::vector<Json> items = {});
  static Json object(std::vector<Member> members = {});

  Type type() const { return type_; }
  bool is_null() const { return type_ == Type::null; }
  bool is_boolean() const { return type_ == Type::boolean; }
  bool is_integer() const { return type_ == Type::integer; }
  bool is_number() const { return type_ == Type::integer || type_ == Type::real; }
  bool is_string() const { return type_ == Type::string; }
  bool is_array() const { return type_ == Type::array; }
  bool is_object() const { return type_ == Type::object; }

  // CHECK the type first: a wrong one is a bug of the caller.
  bool as_boolean() const {
    CHECK(is_boolean());
    return integer_ != 0;
  }
  int64_t as_integer() const {
    CHECK(is_integer());
    return integer_;
  }
  bool is_unsigned_above_int64() const {
    return is_unsigned_;
  }                        // then as_integer() is its bit pattern
  double as_real() const;  // integers too
  const std::string& as_string() const {
    CHECK(is_string());
    return string_;
  }
  const std::vector<Json>& items() const {
    CHECK(is_array());
    return items_;
  }
  std::vector<Json>& items() {
    CHECK(is_array());
    return items_;
  }
  const std::vector<Member>& members() const {
    CHECK(is_object());
    return members_;
  }
  std::vector<Member>& members() {
    CHECK(is_object());
    return members_;
  }

  // The member of that name (the last, where a name stands twice), or nullptr.
  const Json* find(std::string_view name) const;
  void set(std::string name, Json value);  // object only; replaces

  // Compact: no spaces; ASCII control characters escaped, other text as UTF-8.
  std::string to_string() const;

 private:
  friend class JsonReader;
  Type type_ = Type::null;
  bool is_unsigned_ = false;
  int64_t integer_ = 0;
  double real_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

// `what` opens the error message (a path, "request body"). Depth is limited to `depth_max`.
Result<Json> parse_json(std::string_view text, std::string_view what, int depth_max = 128);
Result<Json> read_json_file(const std::string& path, int64_t bytes_max);

void append_json_string(std::string& out, std::string_view text);  // with quotes

}  // namespace glmd
