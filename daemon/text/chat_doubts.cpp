#include "text/chat_doubts.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "platform/file.h"
#include "platform/json.h"
#include "text/chat_template.h"

namespace glmd {
namespace {

constexpr int64_t template_bytes_max = 1 << 20;
constexpr int64_t config_bytes_max = 64 << 20;  // it lists every added token

// The one named "default" of several, or the first.
const Json* choose_template(const Json& templates) {
  const Json* chosen = nullptr;
  for (const Json& item : templates.items()) {
    const Json* name = item.find("name");
    const bool is_default = name != nullptr && name->is_string() && name->as_string() == "default";
    if (chosen == nullptr || is_default) chosen = item.find("template");
  }
  return chosen;
}

struct FoundTemplate {
  std::string path, text;
};

Result<std::optional<FoundTemplate>> find_template(const std::string& folder) {
  const std::string path = folder + "/chat_template.jinja";
  if (path_exists(path)) return {FoundTemplate{path, TRY(read_file(path, template_bytes_max))}};
  const std::string config_path = folder + "/tokenizer_config.json";
  if (!path_exists(config_path)) return {std::nullopt};
  const Json config = TRY(read_json_file(config_path, config_bytes_max));
  const Json* value = config.find("chat_template");
  if (value != nullptr && value->is_array()) value = choose_template(*value);
  if (value == nullptr || !value->is_string()) return {std::nullopt};
  return {FoundTemplate{config_path, value->as_string()}};
}

std::string shown_ids(std::span<const int32_t> ids) {
  return fmt::format("[{}]", fmt::join(ids, ", "));
}

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void add_stop_doubts(const std::string& folder, std::span<const int32_t> stop_ids,
                     const Tokenizer& tokenizer, std::vector<std::string>& doubts) {
  // An assistant's turn is followed by one of the user or by a tool's answer.
  std::string missing;
  for (const std::string_view marker : {"<|user|>", "<|observation|>"}) {
    const std::optional<int32_t> id = tokenizer.find(marker);
    if (!id || contains(stop_ids, *id)) continue;
    missing += fmt::format("{}{} ({})", missing.empty() ? "" : " and ", marker, *id);
  }
  const std::string where = folder + "/config.json, generation_config.json: eos_token_id";
  if (!missing.empty()) {
    doubts.push_back(fmt::format(
        "{}: {} lacks {}: a chat's answer ends there all the same, one of fmt=raw does not", where,
        shown_ids(stop_ids), missing));
  }
  for (const int32_t id : stop_ids) {
    if (tokenizer.is_special(id)) continue;
    const std::string text = tokenizer.decode({&id, 1});
    doubts.push_back(tokenizer.has_token(id)
                         ? fmt::format("{}: {} is the text {}, no special token", where, id,
                                       Json::string(text).to_string())
                         : fmt::format("{}: no token has the id {}", where, id));
  }
}

}  // namespace

Result<TemplateOrigin> template_origin(const std::string& folder) {
  const std::optional<FoundTemplate> found = TRY(find_template(folder));
  if (!found) return TemplateOrigin::none;
  return is_built_in_template(found->text) ? TemplateOrigin::built_in : TemplateOrigin::other;
}

Result<std::vector<std::string>> chat_doubts(const std::string& folder,
                                             std::span<const int32_t> stop_ids,
                                             const Tokenizer& tokenizer) {
  std::vector<std::string> doubts;
  const std::optional<FoundTemplate> found = TRY(find_template(folder));
  if (found && !is_built_in_template(found->text)) {
    doubts.push_back(
        fmt::format("{}: not the chat template of GLM-5.2, which chats will be rendered with all "
                    "the same",
                    found->path));
  }
  add_stop_doubts(folder, stop_ids, tokenizer, doubts);
  return doubts;
}

}  // namespace glmd
