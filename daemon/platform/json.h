// JSON: simdjson reads (untrusted text, bounded depth), values keep the order of their keys and all
// digits of their integers; a small writer prints. Not for hot paths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "platform/result.h"

namespace glmd {

class Json {
 public:
  enum class Type { null, boolean, integer, big_integer, real, string, array, object };
  using Member = std::pair<std::string, Json>;

  Json() = default;
  static Json boolean(bool value);
  static Json integer(int64_t value);
  static Json big_integer(std::string digits);  // one that int64 does not hold, as JSON writes it
  static Json real(double value);
  static Json string(std::string value);
  static Json array(std::vector<Json> items = {});
  static Json object(std::vector<Member> members = {});

  Type type() const;
  bool is_null() const { return holds<std::monostate>(); }
  bool is_boolean() const { return holds<bool>(); }
  bool is_integer() const { return holds<int64_t>(); }  // one that int64 holds
  bool is_big_integer() const { return holds<BigInteger>(); }
  bool is_number() const { return is_integer() || is_big_integer() || holds<double>(); }
  bool is_string() const { return holds<std::string>(); }
  bool is_array() const { return holds<std::vector<Json>>(); }
  bool is_object() const { return holds<std::vector<Member>>(); }

  // CHECK the type first: a wrong one is a bug of the caller.
  bool as_boolean() const { return get<bool>(); }
  int64_t as_integer() const { return get<int64_t>(); }
  const std::string& as_digits() const { return get<BigInteger>().digits; }  // of a big integer
  double as_real() const;  // integers too; infinite beyond what a double holds
  const std::string& as_string() const { return get<std::string>(); }
  const std::vector<Json>& items() const { return get<std::vector<Json>>(); }
  std::vector<Json>& items() { return get<std::vector<Json>>(); }
  const std::vector<Member>& members() const { return get<std::vector<Member>>(); }
  std::vector<Member>& members() { return get<std::vector<Member>>(); }

  // The member of that name (the last, where a name stands twice), or nullptr.
  const Json* find(std::string_view name) const;
  void set(std::string name, Json value);  // object only; replaces what find() has

  // Compact: no spaces; ASCII control characters escaped, other text as UTF-8.
  std::string to_string() const;

 private:
  struct BigInteger {
    std::string digits;
  };
  // Compact: a request of some megabytes has millions of them.
  using Value = std::variant<std::monostate, bool, int64_t, BigInteger, double, std::string,
                             std::vector<Json>, std::vector<Member>>;

  template <typename T>
  Json(std::in_place_type_t<T> type, T value) : value_(type, std::move(value)) {}

  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  template <typename T>
  const T& get() const {
    CHECK(holds<T>());
    return *std::get_if<T>(&value_);
  }
  template <typename T>
  T& get() {
    CHECK(holds<T>());
    return *std::get_if<T>(&value_);
  }

  Value value_;
};

// `what` opens the error message (a path, "request body"). Depth is limited to `depth_max`, the
// length of numbers is not; a real that a double does not hold is infinite or 0, as in Python.
Result<Json> parse_json(std::string_view text, std::string_view what, int depth_max = 128);
Result<Json> read_json_file(const std::string& path, int64_t bytes_max);

// "WHAT: NAME: wanted WANTED, got VALUE": at most 60 bytes of it, "nothing" where there is none.
Error wrong_value(std::string_view what, std::string_view name, std::string_view wanted,
                  const Json* got);
std::string shown(const Json* value);

void append_json_string(std::string& out, std::string_view text);  // with quotes

}  // namespace glmd
