#include "text/chat_template.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "text/python_value.h"

namespace glmd {
namespace {

constexpr std::string_view tools_head =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr std::string_view tools_foot =
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following XML "
    "format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</"
    "arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

struct MediaKind {
  std::string_view type;
  std::string_view word;
};

constexpr std::array<MediaKind, 7> media_kinds{{{"image", "image"},
                                                {"image_url", "image"},
                                                {"video", "video"},
                                                {"video_url", "video"},
                                                {"audio", "audio"},
                                                {"audio_url", "audio"},
                                                {"input_audio", "audio"}}};

// value.name, or undefined: only objects have what the template asks for.
const Json* attribute(const Json& value, std::string_view name) {
  return value.is_object() ? value.find(name) : nullptr;
}

bool is_string(const Json* value) {
  return value != nullptr && value->is_string();
}

bool is_string(const Json* value, std::string_view wanted) {
  return is_string(value) && value->as_string() == wanted;
}

template <typename... Args>
Error unfit(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorKind::bad_input, format, std::forward<Args>(args)...);
}

std::string_view media_word(std::string_view type) {
  const auto kind = std::find_if(media_kinds.begin(), media_kinds.end(),
                                 [&](const MediaKind& media) { return media.type == type; });
  return kind == media_kinds.end() ? std::string_view() : kind->word;
}

std::string_view media_word(const Json* type) {
  return is_string(type) ? media_word(type->as_string()) : std::string_view();
}

// The template's macro of this name: the text of a content, which may be a list of parts.
std::string visible_text(const Json* content) {
  if (content == nullptr || !content->is_array()) return python_str(content);
  std::string out;
  for (const Json& item : content->items()) {
    const Json* type = attribute(item, "type");
    if (is_string(type, "text")) {
      out += python_str(attribute(item, "text"));
    } else if (item.is_string()) {
      out += item.as_string();
    } else if (const std::string_view word = media_word(type); !word.empty()) {
      out += fmt::format(
          "<reminder>You are unable to process this {} because you don't have multi-modal input "
          "ability. "
          "Try different methods.</reminder>",
          word);
    }
  }
  return out;
}

// An object per line, its own keys unescaped, as the template's macro prints it.
std::string tool_to_json(const Json& tool) {
  std::string out = "{";
  std::string_view separator;
  for (const auto& [name, value] : python_items(tool)) {
    if (name == "defer_loading" || name == "strict") continue;
    out += separator;
    separator = ", ";
    out += fmt::format("\"{}\": {}", name, python_json_dumps(*value));
  }
  return out + "}";
}

// {"type": "function", "function": {...}} is unwrapped.
Result<const Json*> unwrap_tool(const Json& tool) {
  const Json* inner = &tool;
  if (tool.is_object() && tool.find("function") != nullptr) inner = tool.find("function");
  if (!inner->is_object()) return unfit("a tool is not an object");
  return inner;
}

// What an assistant message says: its thought, if it has one, and its content without it.
struct Utterance {
  std::optional<std::string> thought;
  std::string content;
};

Utterance split_utterance(const Json& message) {
  constexpr std::string_view open = "<think>";
  constexpr std::string_view close = "</think>";
  Utterance utterance{.thought = {}, .content = visible_text(attribute(message, "content"))};
  const Json* reasoning = attribute(message, "reasoning_content");
  if (is_string(reasoning)) {
    utterance.thought = reasoning->as_string();
    return utterance;
  }
  const std::string content = utterance.content;
  const size_t first_close = content.find(close);
  if (first_close == std::string::npos) return utterance;
  std::string thought = content.substr(0, first_close);
  const size_t last_open = thought.rfind(open);
  if (last_open != std::string::npos) thought.erase(0, last_open + open.size());
  utterance.thought = std::move(thought);
  utterance.content = content.substr(content.rfind(close) + close.size());
  return utterance;
}

class Renderer {
 public:
  Renderer(const Json* messages, const Json* tools, const Json& options, int64_t text_bytes_max)
      : messages_(messages), tools_(tools), options_(options), text_bytes_max_(text_bytes_max) {}

  Result<std::vector<TextSpan>> render() {
    markup("[gMASK]<sop>");
    const Json* enable_thinking = options_.find("enable_thinking");
    if (enable_thinking == nullptr || is_truthy(enable_thinking)) {
      const bool is_high = is_string(options_.find("reasoning_effort"), "high");
      markup(is_high ? "<|system|>Reasoning Effort: High" : "<|system|>Reasoning Effort: Max");
    }
    if (is_truthy(tools_)) TRY_CONTEXT(render_tools(), "tools");
    TRY(render_messages());
    if (is_truthy(options_.find("add_generation_prompt"))) {
      const bool is_thinking_off = enable_thinking != nullptr && !is_truthy(enable_thinking);
      markup(is_thinking_off ? "<|assistant|><think></think>" : "<|assistant|><think>");
    }
    return std::move(spans_);
  }

 private:
  void append(std::string_view text, bool is_trusted) {
    if (text.empty()) return;
    if (spans_.empty() || spans_.back().is_trusted != is_trusted)
      spans_.push_back({"", is_trusted});
    spans_.back().text += text;
    text_bytes_ += std::ssize(text);
  }
  Result<void> check_room() const {
    if (text_bytes_ <= text_bytes_max_) return {};
    return error(ErrorKind::no_memory, "the conversation has more than {} bytes of text",
                 text_bytes_max_);
  }
  void markup(std::string_view text) { append(text, true); }
  void plain(std::string_view text) { append(text, false); }

  Result<void> render_tools() {
    if (!tools_->is_array()) return unfit("they are not an array");
    markup(tools_head);
    for (const Json& item : tools_->items()) {
      const Json* tool = TRY(unwrap_tool(item));
      if (is_truthy(tool->find("defer_loading"))) continue;
      plain(tool_to_json(*tool));
      markup("\n");
    }
    markup(tools_foot);
    return {};
  }

  Result<void> render_messages() {
    if (messages_ == nullptr) return unfit("messages are missing");
    // Strings and objects can be iterated in Python; what they yield has no role and prints
    // nothing.
    if (messages_->is_string() || messages_->is_object()) return {};
    if (!messages_->is_array()) return unfit("messages are not an array");
    const std::vector<Json>& messages = messages_->items();
    for (size_t i = 0; i < messages.size(); ++i) {
      if (is_string(attribute(messages[i], "role"), "user")) after_last_user_ = i + 1;
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      TRY_CONTEXT(render_message(messages[i], i), fmt::format("messages[{}]", i));
      TRY(check_room());
    }
    return {};
  }

  Result<void> render_message(const Json& message, size_t index) {
    const Json* role = attribute(message, "role");
    if (is_string(role, "user") || is_string(role, "system")) {
      markup(is_string(role, "user") ? "<|user|>" : "<|system|>");
      plain(visible_text(attribute(message, "content")));
    } else if (is_string(role, "assistant")) {
      return render_assistant(message, index);
    } else if (is_string(role, "tool")) {
      return render_tool_result(message, index);
    }
    return {};
  }

  Result<void> render_assistant(const Json& message, size_t index) {
    markup("<|assistant|>");
    Utterance utterance = split_utterance(message);
    const Json* clear_thinking = options_.find("clear_thinking");
    const bool keeps_all = clear_thinking != nullptr && !is_truthy(clear_thinking);
    const bool shows_thought = keeps_all || index >= after_last_user_;
    // In the template the thought is a variable, and an option of its name is what it falls back
    // to.
    const Json* fallback = options_.find("reasoning_content");
    if (shows_thought && !utterance.thought && fallback != nullptr) {
      if (!fallback->is_string()) return unfit("the option reasoning_content is not a string");
      utterance.thought = fallback->as_string();
    }
    markup("<think>");
    if (shows_thought) plain(utterance.thought.value_or(""));
    markup("</think>");
    plain(python_strip(utterance.content));

    const Json* calls = attribute(message, "tool_calls");
    if (!is_truthy(calls)) return {};
    if (!calls->is_array()) return unfit("tool_calls are not an array");
    for (const Json& call : calls->items()) TRY(render_call(call));
    return {};
  }

  Result<void> render_call(const Json& item) {
    const Json* function = attribute(item, "function");
    const Json& call = is_truthy(function) ? *function : item;
    const Json* name = attribute(call, "name");
    if (!is_string(name)) return unfit("a tool call has no name that is a string");
    const Json* arguments = attribute(call, "arguments");
    if (arguments == nullptr || !arguments->is_object()) {
      return unfit("the arguments of a tool call are not an object");
    }
    markup("<tool_call>");
    plain(name->as_string());
    for (const auto& [key, value] : python_items(*arguments)) {
      markup("<arg_key>");
      plain(key);
      markup("</arg_key><arg_value>");
      plain(value->is_string() ? value->as_string() : python_json_dumps(*value));
      markup("</arg_value>");
    }
    markup("</tool_call>");
    return {};
  }

  Result<void> render_tool_result(const Json& message, size_t index) {
    const std::vector<Json>& messages = messages_->items();
    if (index == 0 || !is_string(attribute(messages[index - 1], "role"), "tool")) {
      markup("<|observation|>");
    }
    const Json* content = attribute(message, "content");
    const bool is_list = content != nullptr && content->is_array() && !content->items().empty();
    if (is_list && is_string(attribute(content->items()[0], "type"), "tool_reference")) {
      return render_tool_references(content->items());
    }
    if (is_list && attribute(content->items()[0], "output") != nullptr) {
      for (const Json& item : content->items()) {
        const Json* output = attribute(item, "output");
        if (!is_string(output)) return unfit("a tool result has no output that is a string");
        render_response(output->as_string());
      }
      return {};
    }
    render_response(visible_text(content));
    return {};
  }

  void render_response(std::string_view text) {
    markup("<tool_response>");
    plain(text);
    markup("</tool_response>");
  }

  // A search for deferred tools answers with references; the definitions are shown where they are
  // named.
  Result<void> render_tool_references(const std::vector<Json>& references) {
    const bool can_be_iterated =
        tools_ != nullptr && (tools_->is_array() || tools_->is_string() || tools_->is_object());
    if (!can_be_iterated) return unfit("tools are referred to, but there are none");
    markup("<tool_response><tools>\n");
    if (tools_->is_array()) TRY(define_tools());
    for (const Json& reference : references) {
      const auto found = definitions_.find(python_key(attribute(reference, "name")));
      if (found == definitions_.end()) continue;
      for (const std::string& definition : found->second) {
        plain(definition);
        markup("\n");
        TRY(check_room());
      }
    }
    markup("</tools></tool_response>");
    return {};
  }

  Result<void> define_tools() {
    if (!definitions_.empty()) return {};
    for (const Json& item : tools_->items()) {
      const Json* tool = TRY(unwrap_tool(item));
      definitions_[python_key(tool->find("name"))].push_back(tool_to_json(*tool));
    }
    return {};
  }

  const Json* messages_;
  const Json* tools_;
  const Json& options_;
  const int64_t text_bytes_max_;
  int64_t text_bytes_ = 0;
  std::unordered_map<std::string, std::vector<std::string>> definitions_;  // by python_key of names
  std::vector<TextSpan> spans_;
  size_t after_last_user_ = 0;  // index of the first message after the last one of the user
};

}  // namespace

Result<std::vector<TextSpan>> render_chat(const Json& input, int64_t text_bytes_max) {
  if (!input.is_object()) return unfit("the chat is not an object");
  const Json no_options = Json::object();
  const Json* options = input.find("options");
  if (options == nullptr || options->is_null()) options = &no_options;
  if (!options->is_object()) return unfit("options are not an object");
  return Renderer(input.find("messages"), input.find("tools"), *options, text_bytes_max).render();
}

std::string join(std::span<const TextSpan> spans) {
  std::string out;
  for (const TextSpan& span : spans) out += span.text;
  return out;
}

std::span<const std::string_view> chat_markers() {
  static constexpr std::string_view markers[] = {
      "[gMASK]",       "<sop>",           "<|system|>",      "<|user|>",
      "<|assistant|>", "<|observation|>", "<think>",         "</think>",
      "<tool_call>",   "</tool_call>",    "<arg_key>",       "</arg_key>",
      "<arg_value>",   "</arg_value>",    "<tool_response>", "</tool_response>"};
  return markers;
}

std::span<const std::string_view> turn_markers() {
  static constexpr std::string_view markers[] = {"<|system|>", "<|user|>", "<|assistant|>",
                                                 "<|observation|>"};
  return markers;
}

bool is_media_type(std::string_view type) {
  return !media_word(type).empty();
}

bool is_built_in_template(std::string_view text) {
  constexpr uint64_t official_hash = 0xf828d92ba7541971;
  const size_t last = text.find_last_not_of(" \t\r\n");
  text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
  return XXH3_64bits(text.data(), text.size()) == official_hash;
}

}  // namespace glmd
