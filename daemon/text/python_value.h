// JSON values as Python and Jinja2 treat them once parsed. The chat template was written for that
// language: what it prints for a number, whether it takes a value for true, which of two equal keys
// counts, all reach the prompt. A null pointer stands for Jinja2's undefined. Thread: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/json.h"

namespace glmd {

bool is_truthy(const Json* value);

// Equal texts for what == takes for equal: 1, 1.0 and True, and objects whatever their order.
std::string python_key(const Json* value);

// A dictionary's items: a key that stands twice keeps its first place and has its last value.
std::vector<std::pair<std::string_view, const Json*>> python_items(const Json& object);

std::string python_str(const Json* value);         // str()
std::string python_json_dumps(const Json& value);  // json.dumps(ensure_ascii=False)

// str.strip(): White_Space and the separators U+001C to U+001F.
std::string_view python_strip(std::string_view text);

}  // namespace glmd
