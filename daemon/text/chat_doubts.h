// What of a checkpoint's own texts lets one doubt that chats go as its author meant. Nothing of it
// keeps the model from being served. Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/result.h"
#include "text/tokenizer.h"

namespace glmd {

// The chat template of a model's folder: chat_template.jinja, or else what tokenizer_config.json
// has in chat_template.
enum class TemplateOrigin { none, built_in, other };
Result<TemplateOrigin> template_origin(const std::string& folder);

// A line for each doubt, which names the file: a template that is not the built-in one, stop ids
// without the markers that end an answer, or of ordinary text.
Result<std::vector<std::string>> chat_doubts(const std::string& folder,
                                             std::span<const int32_t> stop_ids,
                                             const Tokenizer& tokenizer);

}  // namespace glmd
