// The prompt of a conversation, as GLM-5.2's chat template renders it, byte for byte what Jinja2
// makes of chat_template.jinja, values that are no strings and failures included. Written out by
// hand: a template engine would be another language to trust, and its output would no longer tell
// markup from what users wrote. Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/json.h"
#include "text/tokenizer.h"

namespace glmd {

// `input`: an object with `messages` (array), `tools` (array, null or absent) and `options`
// (object, null or absent): add_generation_prompt, enable_thinking, reasoning_effort,
// clear_thinking. The template's own text is trusted; contents, thoughts, tool names, arguments,
// definitions and results are not. Takes time and memory in proportion to the input and to
// `text_bytes_max`: a tool may be referred to many times. Errors: bad_input where the template
// would fail; no_memory where there is more text.
Result<std::vector<TextSpan>> render_chat(const Json& input, int64_t text_bytes_max = INT64_MAX);

std::string join(std::span<const TextSpan> spans);

// The added tokens that render_chat() writes.
std::span<const std::string_view> chat_markers();
// Those of them that begin a turn.
std::span<const std::string_view> turn_markers();
// The type of a part that stands for an image, a video or a sound: the template says that it cannot
// be seen.
bool is_media_type(std::string_view type);

// Whether this is the template that render_chat() writes out, white space at its end apart.
bool is_built_in_template(std::string_view text);

}  // namespace glmd
