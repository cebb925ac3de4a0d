#include "generation/prompt.h"

#include <optional>

#include "platform/json.h"
#include "text/chat_input.h"
#include "text/chat_template.h"

namespace glmd {
namespace {

Result<Prompt> prompt_of_tokens(const std::string& text, int64_t vocabulary) {
  const Json ids = TRY(parse_json(text, "prompt"));
  if (!ids.is_array())
    return error(ErrorKind::bad_input, "prompt: wanted a JSON array of token ids");
  Prompt prompt;
  prompt.tokens.reserve(ids.items().size());
  for (size_t index = 0; index < ids.items().size(); ++index) {
    const Json& id = ids.items()[index];
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() >= vocabulary) {
      return error(ErrorKind::bad_input, "prompt: item {}: wanted a token id from 0 to {}, got {}",
                   index, vocabulary - 1, id.to_string().substr(0, 40));
    }
    prompt.tokens.push_back(static_cast<int32_t>(id.as_integer()));
  }
  return prompt;
}

Result<Prompt> prompt_of_chat(const Submit& submit, const Tokenizer& tokenizer,
                              int64_t text_bytes_max) {
  Json chat = TRY(parse_json(submit.prompt, "prompt"));
  TRY(normalise_chat(chat));
  std::vector<TextSpan> spans = TRY(render_chat(chat, text_bytes_max));
  if (submit.markup_is_trusted) {
    for (TextSpan& span : spans) span.is_trusted = true;
  }
  Prompt prompt;
  prompt.tokens = tokenizer.encode(spans);
  prompt.is_chat = true;
  const std::optional<int32_t> think = tokenizer.find("<think>");
  prompt.starts_in_thought = !prompt.tokens.empty() && think == prompt.tokens.back();
  return prompt;
}

}  // namespace

Result<Prompt> make_prompt(const Submit& submit, const Tokenizer* tokenizer, int64_t vocabulary,
                           int64_t text_bytes_max) {
  if (submit.format == PromptFormat::tokens) return prompt_of_tokens(submit.prompt, vocabulary);
  if (tokenizer == nullptr) {
    return error(ErrorKind::bad_input, "the model has no tokenizer: only fmt=tokens is served");
  }
  if (submit.format == PromptFormat::chat)
    return prompt_of_chat(submit, *tokenizer, text_bytes_max);
  if (std::ssize(submit.prompt) > text_bytes_max) {
    return error(ErrorKind::no_memory, "the prompt has more than {} bytes", text_bytes_max);
  }
  return Prompt{tokenizer->encode(submit.prompt), false, false};
}

}  // namespace glmd
