// The two filters of a stream: whatever way the text is cut, the joined output is the same.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "platform/result.h"
#include "text/stop_matcher.h"
#include "text/unicode.h"
#include "text/utf8_assembler.h"

namespace glmd {
namespace {

TEST(Utf8, invalid_sequences_are_replaced_by_maximal_subparts) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\x80", "\uFFFD"},
      {"a\xc0\xaf", "a\uFFFD\uFFFD"},
      {"\xe2\x82", "\uFFFD"},
      {"\xe2\x82z", "\uFFFDz"},
      {"\xf0\x9f\x91\xf0\x9f\x91\x8d", "\uFFFD👍"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xe0\x80", "\uFFFD\uFFFD"},
      {"\xf8\xff", "\uFFFD\uFFFD"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(replace_invalid_utf8(bytes), text);
}

TEST(Utf8Assembler, holds_back_half_a_character_and_nothing_else) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("a\xf0\x9f"), "a");
  EXPECT_EQ(assembler.push("\x91"), "");
  EXPECT_EQ(assembler.push("\x8d!"), "👍!");
  EXPECT_EQ(assembler.push("\xe4\xb8"), "");
  EXPECT_EQ(assembler.push("x"), "\uFFFDx");
  EXPECT_EQ(assembler.push("\xe4"), "");
  EXPECT_EQ(assembler.finish(), "\uFFFD");
  EXPECT_EQ(assembler.finish(), "");
}

TEST(Utf8Assembler, gives_the_same_text_however_the_bytes_are_cut) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::vector<std::string> parts{"a",    "é",        "中",      "👍",    "\x80",
                                       "\xe2", "\xf0\x9f", "\xc0",    "\xed", "\xa0",
                                       "\xf4", "\x90",     "\xe0\xa0"};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t count = random() % 12; count > 0; --count) bytes += parts[random() % parts.size()];
    Utf8Assembler assembler;
    std::string text;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t count = random() % 4;
      const std::string released = assembler.push(std::string_view(bytes).substr(begin, count));
      ASSERT_EQ(replace_invalid_utf8(released), released);
      text += released;
      begin += count;
    }
    text += assembler.finish();
    ASSERT_EQ(text, replace_invalid_utf8(bytes));
  }
}

TEST(StopMatcher, holds_back_what_may_become_a_stop_string) {
  StopMatcher matcher({"\n\nUser:", "END"});
  EXPECT_EQ(matcher.push("one\n"), "one");
  EXPECT_EQ(matcher.push("two\n\n"), "\ntwo");
  EXPECT_EQ(matcher.push("Use"), "");
  EXPECT_EQ(matcher.push("d E"), "\n\nUsed ");
  EXPECT_FALSE(matcher.is_stopped());
  EXPECT_EQ(matcher.push("ND of it"), "");
  EXPECT_TRUE(matcher.is_stopped());
  EXPECT_EQ(matcher.matched(), 1u);
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, lets_out_at_the_end_what_no_stop_string_completed) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("the EN"), "the ");
  EXPECT_EQ(matcher.finish(), "EN");
  EXPECT_FALSE(matcher.is_stopped());
}

TEST(StopMatcher, the_match_that_is_complete_first_wins_and_of_those_the_longest) {
  StopMatcher first({"abcd", "bc"});
  EXPECT_EQ(first.push("xabcd"), "xa");
  EXPECT_EQ(first.matched(), 1u);
  StopMatcher longest({"c", "abc", "bc"});
  EXPECT_EQ(longest.push("xabc"), "x");
  EXPECT_EQ(longest.matched(), 1u);
}

TEST(StopMatcher, without_stop_strings_everything_passes_at_once) {
  StopMatcher matcher({"", ""});
  EXPECT_EQ(matcher.push("text"), "text");
  EXPECT_EQ(matcher.finish(), "");
}

// The definition, at once and by brute force.
std::string stopped_text(const std::vector<std::string>& stops, const std::string& text,
                         std::optional<size_t>& matched) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool fits = !stops[i].empty() && text.substr(0, end).ends_with(stops[i]);
      if (fits && (!matched || stops[i].size() > stops[*matched].size())) matched = i;
    }
    if (matched) return text.substr(0, end - stops[*matched].size());
  }
  return text;
}

TEST(StopMatcher, gives_the_same_text_however_it_is_cut) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const auto letters = [&](size_t count) {
    std::string text;
    for (; count > 0; --count) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 50000; ++round) {
    std::vector<std::string> stops;
    for (size_t count = random() % 4; count > 0; --count) stops.push_back(letters(random() % 7));
    const std::string text = letters(random() % 24);
    std::optional<size_t> wanted_match;
    const std::string wanted = stopped_text(stops, text, wanted_match);

    StopMatcher matcher(stops);
    std::string got;
    for (size_t begin = 0; begin < text.size();) {
      const size_t count = random() % 5;
      got += matcher.push(std::string_view(text).substr(begin, count));
      ASSERT_TRUE(wanted.starts_with(got));
      begin += count;
    }
    got += matcher.finish();
    ASSERT_EQ(got, wanted);
    ASSERT_EQ(matcher.matched(), wanted_match);
  }
}

}  // namespace
}  // namespace glmd
