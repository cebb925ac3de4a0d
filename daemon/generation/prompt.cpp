#include "generation/prompt.h"

#include <optional>

#include "platform/json.h"
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

// The template takes more than makes sense: what is no message prints nothing there, and an answer
// to nothing has no tokens.
Result<void> check_chat(const Json& chat) {
  if (!chat.is_object()) {
    return error(ErrorKind::bad_input, "prompt: wanted a JSON object with messages, got {}",
                 shown(&chat));
  }
  const Json* messages = chat.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->items().empty()) {
    return wrong_value("prompt", "messages", "an array of objects", messages);
  }
  for (size_t index = 0; index < messages->items().size(); ++index) {
    const Json& message = messages->items()[index];
    const std::string path = fmt::format("messages[{}]", index);
    if (!message.is_object()) return wrong_value("prompt", path, "an object", &message);
    const Json* role = message.find("role");
    if (role == nullptr || !role->is_string()) {
      return wrong_value("prompt", path + ".role", "a string", role);
    }
  }
  return {};
}

Result<std::vector<TextSpan>> render(const std::string& text, int64_t text_bytes_max) {
  const Json chat = TRY(parse_json(text, "prompt"));
  TRY(check_chat(chat));
  return render_chat(chat, text_bytes_max);
}

Result<Prompt> prompt_of_chat(const Submit& submit, const Tokenizer& tokenizer,
                              int64_t text_bytes_max) {
  std::vector<TextSpan> spans = TRY(render(submit.prompt, text_bytes_max));
  if (submit.markup_is_trusted) {
    for (TextSpan& span : spans) span.is_trusted = true;
  }
  Prompt prompt;
  prompt.tokens = tokenizer.encode(spans);
  prompt.has_thoughts = true;
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
