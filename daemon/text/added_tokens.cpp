#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace glmd {
namespace {

template <typename Candidates>
auto& beginning_with(Candidates& candidates, char first) {
  return candidates[static_cast<unsigned char>(first)];
}

const AddedToken* longest_prefix(const std::vector<AddedToken>& longest_first,
                                 std::string_view text) {
  const auto found =
      std::find_if(longest_first.begin(), longest_first.end(),
                   [&](const AddedToken& token) { return text.starts_with(token.text); });
  return found == longest_first.end() ? nullptr : &*found;
}

bool is_single_word(std::string_view text, TextRange range) {
  return (range.begin == 0 || !is_word(character_before(text, range.begin).code_point)) &&
         (range.end == text.size() || !is_word(decode_utf8(text, range.end).code_point));
}

bool is_space(const DecodedCharacter& character) {
  return classify(character.code_point) == CharacterClass::space;
}

size_t after_spaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const DecodedCharacter character = decode_utf8(text, begin);
    if (!is_space(character)) break;
    begin += character.bytes;
  }
  return begin;
}

size_t before_spaces(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const DecodedCharacter character = character_before(text, end);
    if (!is_space(character) || character.bytes > end - floor) break;
    end -= character.bytes;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) {
  std::stable_sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.text.size() > b.text.size();
  });
  for (AddedToken& token : tokens) {
    Candidates& candidates = token.is_normalized ? normalized_ : raw_;
    beginning_with(candidates, token.text[0]).push_back(std::move(token));
  }
}

const AddedToken* AddedTokens::find(std::string_view text) const {
  if (text.empty()) return nullptr;
  for (const Candidates* candidates : {&raw_, &normalized_}) {
    for (const AddedToken& token : beginning_with(*candidates, text[0])) {
      if (token.text == text) return &token;
    }
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, std::span<const TextRange> trusted,
                        FunctionRef<void(const TextPart&)> visit) const {
  split_part(raw_, text, {0, text.size()}, trusted, [&](const TextPart& part) {
    if (part.token != nullptr) {
      visit(part);
    } else {
      split_part(normalized_, text, part.range, trusted, visit);
    }
  });
}

void AddedTokens::split_part(const Candidates& candidates, std::string_view text, TextRange part,
                             std::span<const TextRange> trusted,
                             FunctionRef<void(const TextPart&)> visit) {
  const std::string_view before_end = text.substr(0, part.end);
  size_t plain_begin = part.begin;
  size_t spaces_end = 0;  // of the white space that was stripped last, so that it is passed once
  const auto first = std::partition_point(trusted.begin(), trusted.end(),
                                          [&](TextRange range) { return range.end <= part.begin; });
  for (auto range = first; range != trusted.end() && range->begin < part.end; ++range) {
    const size_t begin = std::max(range->begin, part.begin);
    const std::string_view within = before_end.substr(0, range->end);
    for (size_t at = begin; at < within.size();) {
      const AddedToken* token =
          longest_prefix(beginning_with(candidates, text[at]), within.substr(at));
      const size_t match_begin = at;
      at += token != nullptr ? token->text.size() : 1;
      if (token == nullptr) continue;
      if (token->is_single_word && !is_single_word(before_end.substr(part.begin),
                                                   {match_begin - part.begin, at - part.begin})) {
        continue;
      }
      TextRange taken{match_begin, at};
      if (token->strips_left) {
        taken.begin = before_spaces(text, match_begin, std::max(begin, plain_begin));
      }
      if (token->strips_right) {
        taken.end = spaces_end = after_spaces(within, std::max(at, spaces_end));
      }
      if (plain_begin < taken.begin) visit({{plain_begin, taken.begin}, nullptr});
      visit({taken, token});
      plain_begin = taken.end;
    }
  }
  if (plain_begin < part.end) visit({{plain_begin, part.end}, nullptr});
}

}  // namespace glmd
