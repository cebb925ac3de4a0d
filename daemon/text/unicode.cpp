#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

namespace glmd {

DecodedCharacter decode_utf8(std::string_view text, size_t index) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(index);
  if (lead < 0x80) return {lead, 1, true, false};
  const DecodedCharacter stray{replacement_character, 1, false, false};
  if (lead < 0xc2 || lead > 0xf4) return stray;

  const size_t wanted = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  char32_t code_point = lead & (0xffu >> (wanted + 1));
  // The second byte is where overlong forms, surrogates and what lies beyond U+10FFFF are refused.
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t i = 1; i < wanted; ++i) {
    if (index + i >= text.size()) return {replacement_character, i, false, true};
    const unsigned char next = byte(index + i);
    if (next < low || next > high) return {replacement_character, i, false, false};
    code_point = (code_point << 6) | (next & 0x3fu);
    low = 0x80;
    high = 0xbf;
  }
  return {code_point, wanted, true, false};
}

DecodedCharacter character_before(std::string_view text, size_t end) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(end, 4); ++bytes) {
    const DecodedCharacter character = decode_utf8(text.substr(0, end), end - bytes);
    if (character.is_valid && character.bytes == bytes) return character;
  }
  return {replacement_character, 1, false, false};
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t index = 0; index < text.size();) {
    const DecodedCharacter character = decode_utf8(text, index);
    out += character.is_valid ? text.substr(index, character.bytes) : replacement_utf8;
    index += character.bytes;
  }
  return out;
}

namespace {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

#include "text/unicode_tables.inc"

constexpr size_t code_point_count = 0x110000;

// One byte a code point: classes are asked for every character of every prompt.
std::vector<CharacterClass> make_classes() {
  std::vector<CharacterClass> classes(code_point_count, CharacterClass::other);
  const auto mark = [&](std::span<const CodePointRange> ranges, CharacterClass value) {
    for (const CodePointRange& range : ranges) {
      std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, value);
    }
  };
  mark(letter_ranges, CharacterClass::letter);
  mark(number_ranges, CharacterClass::number);
  mark(space_ranges, CharacterClass::space);
  return classes;
}

bool has_code_point(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code_point,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

}  // namespace

CharacterClass classify(char32_t code_point) {
  static const std::vector<CharacterClass> classes = make_classes();
  return code_point < code_point_count ? classes[code_point] : CharacterClass::other;
}

bool is_word(char32_t code_point) {
  return has_code_point(word_ranges, code_point);
}

bool is_printable(char32_t code_point) {
  return !has_code_point(unprintable_ranges, code_point);
}

}  // namespace glmd
