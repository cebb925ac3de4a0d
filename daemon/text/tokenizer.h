// The tokeniser of the GLM family: byte-level BPE as tokenizer.json describes it, with the ids that
// the reference (Hugging Face `tokenizers`) gives. Text is cut at added tokens such as <|user|>,
// the rest by the pre-tokeniser, each piece is looked up whole or merged pair by pair.
//
// Text of users is not trusted: an added token inside it is text like any other, so that nobody can
// write
// <|system|> and be believed. Only recognition is suppressed; pieces and merges run over the joined
// text, so that the ids differ from the reference nowhere else. Thread: any; immutable after it is
// opened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/result.h"

namespace glmd {

enum class Recognise {
  added_tokens,
  nothing
};  // whether added tokens in the text become their ids

struct TextSpan {
  std::string text;
  bool is_trusted;  // untrusted: added tokens are not recognised
};

class Tokenizer {
 public:
  // A tokenizer.json, whose ids must be below `vocabulary`, the rows of the model's embedding;
  // unset: of no model.
  static Result<Tokenizer> open(const std::string& path, std::optional<int64_t> vocabulary = {});
  // Refuses whatever it would not treat exactly as the reference does. `what` opens the error
  // message.
  static Result<Tokenizer> parse(std::string_view json, std::string_view what);

  Tokenizer(Tokenizer&& other) noexcept;
  Tokenizer& operator=(Tokenizer&& other) noexcept;
  ~Tokenizer();

  // Any bytes can be encoded; invalid UTF-8 is kept as it is. Nothing is added in front or behind.
  std::vector<int32_t> encode(std::string_view text,
                              Recognise recognise = Recognise::added_tokens) const;
  // As one text; an added token is recognised where all of it is trusted, and strips only white
  // space that is.
  std::vector<int32_t> encode(std::span<const TextSpan> spans) const;

  // Invalid UTF-8 becomes U+FFFD, ids without a token become nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  std::string_view token_bytes(
      int32_t id) const;  // may be part of a character; empty without such an id
  bool has_token(int32_t id) const;
  bool is_special(int32_t id) const;
  std::optional<int32_t> find(std::string_view added_token) const;  // an added token's id
  int32_t vocabulary_size() const;                                  // the highest id + 1
  int64_t longest_token_bytes() const;
  // What the file asks for and is not done, since it is for each call to say: "truncation and
  // padding", one of them or nothing.
  const std::string& ignored_settings() const;

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<const Tables> tables);

  std::unique_ptr<const Tables> tables_;
};

}  // namespace glmd
