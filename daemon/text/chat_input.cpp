#include "text/chat_input.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "text/chat_template.h"

namespace glmd {
namespace {

Error wrong(const std::string& path, std::string_view wanted, const Json* got) {
  return wrong_value("prompt", path, wanted, got);
}

// The member of that name (the last, as find() has it), to be changed.
Json* find(Json& object, std::string_view name) {
  return const_cast<Json*>(std::as_const(object).find(name));
}

bool is_null(const Json* value) {
  return value == nullptr || value->is_null();
}

Result<void> normalise_role(Json& message, const std::string& path) {
  constexpr std::string_view wanted = "one of system, developer, user, assistant, tool";
  const Json* role = message.find("role");
  if (role == nullptr || !role->is_string()) return wrong(path, "a string", role);
  const std::string name = role->as_string();
  if (name == "developer") message.set("role", Json::string("system"));
  if (name == "function") message.set("role", Json::string("tool"));
  for (const std::string_view known :
       {"system", "developer", "user", "assistant", "tool", "function"}) {
    if (name == known) return {};
  }
  return wrong(path, wanted, role);
}

bool has_text(const Json& object, std::string_view name, std::string_view text) {
  const Json* value = object.find(name);
  return value != nullptr && value->is_string() && value->as_string() == text;
}

// The member that each item of a tool's result must have where it is not made of parts; the
// template tells by the first item.
std::string_view tool_result_member(const Json& message, const std::vector<Json>& items) {
  if (!has_text(message, "role", "tool") || items.empty()) return {};
  if (has_text(items[0], "type", "tool_reference")) return "name";
  return items[0].find("output") != nullptr ? "output" : "";
}

Result<void> normalise_part(Json& part, const std::string& path) {
  if (part.is_string()) return {};
  if (!part.is_object()) return wrong(path, "a string or an object with a type", &part);
  const Json* type = part.find("type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
  const bool is_text = name == "text" || name == "input_text" || name == "output_text";
  if (is_text || name == "refusal") {
    const std::string member = is_text ? "text" : name;
    Json* text = find(part, member);
    if (text == nullptr || !text->is_string()) return wrong(path + "." + member, "a string", text);
    if (name != "text")
      part = Json::object({{"type", Json::string("text")}, {"text", std::move(*text)}});
    return {};
  }
  if (name == "input_image") {
    part = Json::object({{"type", Json::string("image")}});
    return {};
  }
  if (is_media_type(name)) return {};
  return wrong(path + ".type", "text, or an image, a video or audio", type);
}

Result<void> normalise_content(Json& message, const std::string& path) {
  Json* content = find(message, "content");
  if (is_null(content)) {
    const Json* refusal = message.find("refusal");  // beside it, in an assistant's message
    const bool is_refusal = refusal != nullptr && refusal->is_string();
    message.set("content", is_refusal ? *refusal : Json::string(""));
    return {};
  }
  if (content->is_string()) return {};
  if (!content->is_array()) return wrong(path, "a string, an array of parts or null", content);
  std::vector<Json>& parts = content->items();
  const std::string_view member = tool_result_member(message, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    if (member.empty()) {
      TRY(normalise_part(parts[i], place));
      continue;
    }
    const Json* value = parts[i].find(member);
    if (value == nullptr || !value->is_string())
      return wrong(fmt::format("{}.{}", place, member), "a string", value);
  }
  return {};
}

Result<void> normalise_arguments(Json& function, const std::string& path) {
  constexpr std::string_view wanted = "an object, or its JSON text";
  const Json* arguments = function.find("arguments");
  if (!is_null(arguments) && arguments->is_object()) return {};
  Json held = Json::object();
  if (!is_null(arguments)) {
    if (!arguments->is_string()) return wrong(path, wanted, arguments);
    const std::string& text = arguments->as_string();
    const bool is_blank = text.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!is_blank) held = TRY(parse_json(text, "prompt: " + path));
    if (held.is_null()) held = Json::object();
    if (!held.is_object()) return wrong(path, wanted, arguments);
  }
  function.set("arguments", std::move(held));
  return {};
}

// With the function inside or, as the template takes it too, without.
Result<void> normalise_call(Json& call, const std::string& path) {
  if (!call.is_object()) return wrong(path, "an object", &call);
  Json* function = find(call, "function");
  if (is_null(function)) return normalise_arguments(call, path + ".arguments");
  if (!function->is_object()) return wrong(path + ".function", "an object", function);
  return normalise_arguments(*function, path + ".function.arguments");
}

Result<void> normalise_calls(Json& message, const std::string& path) {
  Json* older = find(message, "function_call");
  const Json* newer = message.find("tool_calls");
  const bool has_newer = !is_null(newer) && !(newer->is_array() && newer->items().empty());
  if (!has_newer && !is_null(older)) {
    Json call = Json::object({{"function", std::move(*older)}});
    message.set("tool_calls", Json::array({std::move(call)}));
  }
  Json* calls = find(message, "tool_calls");
  if (is_null(calls)) return {};
  if (!calls->is_array()) return wrong(path, "an array", calls);
  for (size_t i = 0; i < calls->items().size(); ++i)
    TRY(normalise_call(calls->items()[i], fmt::format("{}[{}]", path, i)));
  return {};
}

Result<void> normalise_message(Json& message, const std::string& path) {
  if (!message.is_object()) return wrong(path, "an object", &message);
  TRY(normalise_role(message, path + ".role"));
  TRY(normalise_content(message, path + ".content"));
  return normalise_calls(message, path + ".tool_calls");
}

}  // namespace

Result<void> normalise_chat(Json& chat) {
  if (!chat.is_object()) {
    return error(ErrorKind::bad_input, "prompt: wanted a JSON object with messages, got {}",
                 shown(&chat));
  }
  Json* messages = find(chat, "messages");
  if (messages == nullptr || !messages->is_array() || messages->items().empty())
    return wrong("messages", "an array of objects", messages);
  for (size_t i = 0; i < messages->items().size(); ++i)
    TRY(normalise_message(messages->items()[i], fmt::format("messages[{}]", i)));
  return {};
}

}  // namespace glmd
