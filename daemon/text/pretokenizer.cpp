#include "text/pretokenizer.h"

#include "text/unicode.h"

namespace glmd {
namespace {

struct Character {
  char32_t code_point;
  CharacterClass kind;
  size_t end;
};

Character character_at(std::string_view text, size_t index) {
  const DecodedCharacter decoded = decode_utf8(text, index);
  return {decoded.code_point, classify(decoded.code_point), index + decoded.bytes};
}

bool is_newline(char32_t code_point) {
  return code_point == '\r' || code_point == '\n';
}

// The end of the run of `kind` from `index` on; `index` itself if there is none.
size_t skip_run(std::string_view text, size_t index, CharacterClass kind) {
  while (index < text.size()) {
    const Character next = character_at(text, index);
    if (next.kind != kind) break;
    index = next.end;
  }
  return index;
}

char lower(std::string_view text, size_t index) {
  if (index >= text.size()) return 0;
  const char byte = text[index];
  return byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d), after the apostrophe: the end, or `index` if there is none.
size_t match_contraction(std::string_view text, size_t index) {
  const char first = lower(text, index);
  const char second = lower(text, index + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return index + 1;
  if ((first == 'r' || first == 'v') && second == 'e') return index + 2;
  if (first == 'l' && second == 'l') return index + 2;
  if (text.substr(index, 2) == "\xc5\xbf") return index + 2;  // U+017F folds to s
  return index;
}

// \p{N}{1,3}
size_t match_number(std::string_view text, size_t index) {
  for (int count = 0; count < 3 && index < text.size(); ++count) {
    const Character next = character_at(text, index);
    if (next.kind != CharacterClass::number) break;
    index = next.end;
  }
  return index;
}

// [^\s\p{L}\p{N}]+[\r\n]*: the end, or `index` if there is none.
size_t match_symbols(std::string_view text, size_t index) {
  const size_t end = skip_run(text, index, CharacterClass::other);
  if (end == index) return index;
  size_t newlines = end;
  while (newlines < text.size() && is_newline(static_cast<unsigned char>(text[newlines])))
    ++newlines;
  return newlines;
}

// \s*[\r\n]+|\s+(?!\S)|\s+: up to the last newline of the run; without one, all of it but the last
// character, which belongs to the word that follows; a single one, or a run at the end of the text,
// is taken whole.
size_t match_space(std::string_view text, size_t begin) {
  size_t end = begin;
  size_t last_begin = begin;
  size_t after_newline = begin;
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (next.kind != CharacterClass::space) break;
    last_begin = end;
    end = next.end;
    if (is_newline(next.code_point)) after_newline = end;
  }
  if (after_newline != begin) return after_newline;
  if (end == text.size() || last_begin == begin) return end;
  return last_begin;
}

}  // namespace

size_t find_piece_end(std::string_view text, size_t begin) {
  const Character first = character_at(text, begin);
  if (first.code_point == '\'') {
    const size_t end = match_contraction(text, first.end);
    if (end != first.end) return end;
  }
  if (first.kind == CharacterClass::letter) return skip_run(text, begin, CharacterClass::letter);
  if (first.kind == CharacterClass::number) return match_number(text, begin);
  if (!is_newline(first.code_point)) {
    const size_t end = skip_run(text, first.end, CharacterClass::letter);
    if (end != first.end) return end;
  }
  if (first.kind == CharacterClass::other) return match_symbols(text, begin);
  if (first.code_point == ' ') {
    const size_t end = match_symbols(text, first.end);
    if (end != first.end) return end;
  }
  return match_space(text, begin);
}

}  // namespace glmd
