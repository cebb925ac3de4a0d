#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "platform/result.h"
#include "text/unicode.h"

namespace glmd {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(std::string_view text) {
  Pieces pieces;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = find_piece_end(text, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

// The pattern itself, run by an engine. Its \s is not White_Space and its Unicode is older than
// ours: the test keeps to characters on which both agree.
class Engine {
 public:
  Engine() {
    int code = 0;
    PCRE2_SIZE offset = 0;
    pattern_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pretokenizer_pattern.data()),
                                 pretokenizer_pattern.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset,
                                 nullptr));
    match_.reset(pcre2_match_data_create(4, nullptr));
  }

  Pieces cut(std::string_view text) const {
    Pieces pieces;
    for (size_t begin = 0; begin < text.size();) {
      const int count = pcre2_match(pattern_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                    text.size(), begin, 0, match_.get(), nullptr);
      if (count <= 0) return {};
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_.get());
      pieces.emplace_back(text.substr(range[0], range[1] - range[0]));
      begin = range[1];
    }
    return pieces;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> pattern_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

TEST(Pretokenizer, cuts_the_recorded_example_where_the_reference_does) {
  EXPECT_EQ(cut("I'm foo'ſbar 1234567\r\n next"),
            (Pieces{"I", "'m", " foo", "'ſ", "bar", " ", "123", "456", "7", "\r\n", " next"}));
}

TEST(Pretokenizer, agrees_with_the_pattern_run_by_a_regex_engine) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const Engine engine;
  const Pieces parts{"a",  "B",  "s",  "S",  "ll", "LL",     "re", "Ve",     "m",  "'",  "'",
                     " ",  " ",  "  ", "\n", "\r", "\t",     "1",  "22",     "²",  "!",  "?!",
                     "\"", "<",  "é",  "ſ",  "中", "\u0301", "👍",  "\u3000", "\v", "\f", "\u00a0",
                     "d",  "'t", "Ⅷ",  "ﬁ",  "１", "\u200b", "-",  "\u2028"};
  for (int round = 0; round < 50000; ++round) {
    std::string text;
    for (size_t count = 1 + random() % 14; count > 0; --count)
      text += parts[random() % parts.size()];
    ASSERT_EQ(cut(text), engine.cut(text)) << text;
  }
}

TEST(Pretokenizer, white_space_is_what_unicode_says) {
  EXPECT_EQ(classify(0x85), CharacterClass::space);
  EXPECT_EQ(classify(0x180e), CharacterClass::other);
  EXPECT_EQ(classify(0x200b), CharacterClass::other);
  EXPECT_EQ(classify(0x1f), CharacterClass::other);
  EXPECT_EQ(classify(0x10ffff), CharacterClass::other);
  EXPECT_EQ(classify(0x7fffffff), CharacterClass::other);
}

TEST(Pretokenizer, every_piece_of_any_bytes_has_a_byte) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t count = random() % 24; count > 0; --count) text += static_cast<char>(random());
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = find_piece_end(text, begin);
      ASSERT_GT(end, begin);
      ASSERT_LE(end, text.size());
      begin = end;
    }
  }
}

}  // namespace
}  // namespace glmd
