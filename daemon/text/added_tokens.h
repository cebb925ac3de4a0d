// Added tokens: texts such as <|user|> that are cut out of a text before the rest is made into
// tokens, where and as far as the reference does it (AddedVocabulary of Hugging Face `tokenizers`).
// Thread: any; immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/function_ref.h"

namespace glmd {

struct AddedToken {
  std::string text;
  int32_t id;
  bool is_normalized = false;   // looked for in what the others leave
  bool is_single_word = false;  // not where a word goes on beside it
  bool strips_left = false;     // white space before it becomes part of it
  bool strips_right = false;
};

struct TextRange {
  size_t begin;
  size_t end;
};

struct TextPart {
  TextRange range;
  const AddedToken* token;  // null: plain text
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // none of them twice
  const AddedToken* find(std::string_view text) const;

  // Parts in their order. A token, and the white space it strips, lies within one range of
  // `trusted` (ascending, not adjacent); what stands beside a single word may be anywhere. As in
  // the reference, white space that a token on its left has stripped can be a token once more.
  void split(std::string_view text, std::span<const TextRange> trusted,
             FunctionRef<void(const TextPart&)> visit) const;

 private:
  // What one pass looks for, by the first byte, longest first.
  using Candidates = std::array<std::vector<AddedToken>, 256>;

  static void split_part(const Candidates& candidates, std::string_view text, TextRange part,
                         std::span<const TextRange> trusted,
                         FunctionRef<void(const TextPart&)> visit);

  Candidates raw_;
  Candidates normalized_;
};

}  // namespace glmd
