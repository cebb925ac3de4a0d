#include "platform/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace glmd {
namespace {

Json parsed(std::string_view text) {
  return parse_json(text, "text").value();
}

std::string refusal(std::string_view text) {
  const Result<Json> json = parse_json(text, "text");
  return json.ok() ? "taken" : json.error().message;
}

TEST(Json, integers_beyond_64_bits_keep_their_digits) {
  for (const std::string digits :
       {"9223372036854775808", "-9223372036854775809", "18446744073709551615",
        "18446744073709551616", "100000000000000000000", "-100000000000000000000"}) {
    const Json json = parsed("{\"a\":[1," + digits + ",2]}");
    const Json& number = json.find("a")->items()[1];
    EXPECT_TRUE(number.is_big_integer());
    EXPECT_TRUE(number.is_number());
    EXPECT_FALSE(number.is_integer());
    EXPECT_EQ(number.type(), Json::Type::big_integer);
    EXPECT_EQ(number.as_digits(), digits);
    EXPECT_EQ(json.to_string(), "{\"a\":[1," + digits + ",2]}");
  }
  EXPECT_EQ(parsed("9223372036854775807").as_integer(), INT64_MAX);
  EXPECT_EQ(parsed("-9223372036854775808").as_integer(), INT64_MIN);
}

TEST(Json, an_integer_may_have_more_digits_than_python_reads) {
  const std::string digits = "1" + std::string(100'000, '0');
  EXPECT_EQ(parsed(digits).as_digits(), digits);
  EXPECT_EQ(parsed(digits).as_real(), INFINITY);
  EXPECT_EQ(parsed("100000000000000000000").as_real(), 1e20);
}

TEST(Json, a_real_beyond_doubles_is_infinite_or_nothing) {
  EXPECT_EQ(parsed("1e400").as_real(), INFINITY);
  EXPECT_EQ(parsed("-1E+400").as_real(), -INFINITY);
  EXPECT_EQ(parsed("1e-400").as_real(), 0);
  EXPECT_TRUE(std::signbit(parsed("-1e-400").as_real()));
  EXPECT_EQ(parsed("5e-324").as_real(), 5e-324);
  EXPECT_EQ(parsed("1" + std::string(400, '0') + ".0").as_real(), INFINITY);
}

TEST(Json, a_number_with_a_point_or_an_exponent_is_a_real) {
  EXPECT_EQ(parsed("1E5").type(), Json::Type::real);
  EXPECT_EQ(parsed("1.0").type(), Json::Type::real);
  EXPECT_EQ(parsed("-0").type(), Json::Type::integer);
  EXPECT_TRUE(std::signbit(parsed("-0.0").as_real()));
}

TEST(Json, what_looks_like_a_number_in_a_string_stays_text) {
  const std::string text =
      R"({"1e400":"01","-":["\"5",100000000000000000000,"\\",7],"\\\"8":"-1-"})";
  EXPECT_EQ(parsed(text).to_string(), text);
}

TEST(Json, numbers_and_strings_in_any_order_come_back_as_they_were) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::string text = "[";
    for (size_t count = 1 + random() % 12; count > 0; --count) {
      std::string digits(1 + random() % 40, '0');
      for (char& digit : digits) digit = static_cast<char>('1' + random() % 9);
      const std::string sign = random() % 2 == 0 ? "-" : "";
      const std::string items[] = {sign + digits, "\"" + digits + "\"", "\"\\\"-" + digits + "\"",
                                   "{\"" + digits + "\":" + sign + digits + "}", "true"};
      text += items[random() % std::size(items)] + (count > 1 ? "," : "]");
    }
    EXPECT_EQ(parsed(text).to_string(), text);
  }
}

TEST(Json, what_is_no_number_is_refused_by_its_place) {
  for (const std::string word : {"01", "-", "-01", "1.", "1.e5", "1e", "1e+", "--1", "1-2", "1+1",
                                 "1.2.3", "1e5e5", "00000000000000000000000000"}) {
    EXPECT_EQ(refusal("[7, " + word + "]"),
              "text: not valid JSON: at byte 4: " + word + " is not a number");
  }
  for (const std::string word :
       {"NaN", "Infinity", "-Infinity", "+1", ".5", "0x10", "1 2", "1true", "true1", "1\"a\"",
        "\"a\"1", "100000000000000000000a", "100000000000000000000 1", "\\\"1", "1\\"}) {
    EXPECT_NE(refusal(word), "taken") << word;
    EXPECT_NE(refusal("[" + word + "]"), "taken") << word;
  }
}

TEST(Json, half_a_surrogate_pair_is_refused_by_its_place) {
  EXPECT_EQ(refusal(R"({"\"a":"b\n\ud800"})"),
            R"(text: not valid JSON: at byte 11: \ud800 is half a surrogate pair, )"
            "which is no character");
  for (const std::string text :
       {R"(["\ud83d\ud83d\ude00"])", R"(["\udc00"])", R"(["\ud800\n"])", R"(["\uDBFFx"])"}) {
    EXPECT_NE(refusal(text).find("at byte 2: "), std::string::npos) << refusal(text);
    EXPECT_NE(refusal(text).find("surrogate"), std::string::npos) << refusal(text);
  }
  EXPECT_EQ(parsed(R"("\ud83d\ude00")").as_string(), "😀");
  EXPECT_EQ(parsed(R"("\\ud800")").as_string(), "\\ud800");
}

TEST(Json, an_escape_that_json_does_not_have_is_refused_by_its_place) {
  for (const std::string escape : {"\\x41", "\\u12", "\\u12g4", "\\'", "\\U00000041"}) {
    EXPECT_EQ(refusal("[\"\\u0041\\\\\", \"" + escape + "\"]"),
              "text: not valid JSON: at byte 14: an escape that JSON does not have");
  }
}

}  // namespace
}  // namespace glmd
