#include <gtest/gtest.h>

#include <random>

#include "protocol/quoting.h"
#include "protocol/words.h"

namespace glmd::protocol {
namespace {

TEST(Quoting, any_bytes_survive_the_round_trip) {
  const uint32_t seed = 20;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 20, ' ');
    for (char& c : text) c = static_cast<char>(random());
    const std::string quoted = quote(text);
    EXPECT_EQ(unquote(quoted), text);
    EXPECT_FALSE(find_invalid_utf8(quoted)) << quoted;
    EXPECT_EQ(quoted.find('\n'), std::string::npos);
  }
}

TEST(Quoting, tokens_stay_bare) {
  EXPECT_EQ(quote_if_needed("glmctl/0.1"), "glmctl/0.1");
  EXPECT_EQ(quote_if_needed("Größe"), "Größe");
  for (const char* text : {"", "a b", "a=b", "\"", "\\", "a\nb", "\x7f", "\xff"}) {
    EXPECT_EQ(quote_if_needed(text).front(), '"');
  }
}

TEST(Quoting, malformed_quotes_are_refused) {
  for (const char* text :
       {"", "\"", "\"a", "a\"", "\"\\\"", "\"\\q\"", "\"\\x1\"", "\"\\xg0\"", "\"a\"b\""}) {
    EXPECT_EQ(unquote(text), std::nullopt) << text;
  }
}

TEST(Quoting, utf8_is_checked_to_the_letter) {
  for (const char* text : {"", "abc", "é", "€", "😀", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt) << text;
  }
  for (const char* text : {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_EQ(find_invalid_utf8(text), 0) << text;
  }
  EXPECT_EQ(find_invalid_utf8("ab\xff"), 2);
}

TEST(Numbers, reals_have_no_exponent) {
  EXPECT_EQ(parse_real("0.7"), 0.7);
  EXPECT_EQ(parse_real("-1"), -1.0);
  for (const char* text : {"", ".", "1.", ".5", "1e3", "nan", "inf", "+1", "0x1", "1234567890",
                           "1.1234567890", "--1"}) {
    EXPECT_EQ(parse_real(text), std::nullopt) << text;
  }
}

TEST(Numbers, reals_survive_the_round_trip) {
  for (const double value : {0.0, 1.0, 0.95, 0.7, -2.5, 100.0, 0.000000001}) {
    EXPECT_EQ(parse_real(format_real(value)), value);
  }
}

TEST(Numbers, ids_are_all_of_64_bits_but_0) {
  EXPECT_EQ(parse_id("1"), 1u);
  EXPECT_EQ(parse_id("18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "0", "01", "18446744073709551616", "-1", "1a", " 1"}) {
    EXPECT_EQ(parse_id(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace glmd::protocol
