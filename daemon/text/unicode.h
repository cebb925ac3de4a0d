// Unicode as the references see it: decoding that never fails, and the few classes of code points
// that the pre-tokeniser and the chat template ask for. The tables are taken from the references
// themselves (make_unicode_tables.py), since another Unicode version would give other token ids.
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace glmd {

inline constexpr char32_t replacement_character = 0xfffd;
inline constexpr std::string_view replacement_utf8 = "\xef\xbf\xbd";

struct DecodedCharacter {
  char32_t code_point;  // replacement_character for an invalid sequence
  size_t bytes;  // at least 1; for an invalid sequence its maximal subpart (Unicode 3.9, U+FFFD)
  bool is_valid;
  bool is_cut_off;  // invalid only because the text ends: more bytes could complete it
};

// The character at `index`, which is below text.size().
DecodedCharacter decode_utf8(std::string_view text, size_t index);
// The character that ends at `end`, which is above 0; one byte where it is invalid.
DecodedCharacter character_before(std::string_view text, size_t end);

// Replaces every maximal invalid subpart by U+FFFD, as Rust's from_utf8_lossy and Python's
// "replace" do.
std::string replace_invalid_utf8(std::string_view text);

enum class CharacterClass : unsigned char {
  other,   // punctuation, marks, symbols, controls, unassigned
  letter,  // \p{L}
  number,  // \p{N}
  space,   // White_Space
};

CharacterClass classify(char32_t code_point);

bool is_word(char32_t code_point);       // \w of Rust's regex
bool is_printable(char32_t code_point);  // Python's str.isprintable

}  // namespace glmd
