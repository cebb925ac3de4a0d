// Cuts text into the pieces that BPE may not merge across. GLM uses one pattern, cl100k's with
// digits in groups of three, and here it is a matcher written by hand: every alternative is decided
// by looking at character classes, in one pass, without a regex engine's limits of stack and
// backtracking. The tests compare it with PCRE2 and with the reference. Thread: any.
#pragma once

#include <cstddef>
#include <string_view>

namespace glmd {

inline constexpr std::string_view pretokenizer_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The end of the piece that starts at `begin`, which is below text.size(). `text` ends where the
// pattern's text ends: at an added token or at the end of the input. Invalid UTF-8 counts as
// symbols and keeps its bytes.
size_t find_piece_end(std::string_view text, size_t begin);

}  // namespace glmd
