// A conversation as clients of the usual HTTP interfaces send it, made into what the chat template
// takes: servers do this before they render, and templates rely on it. Thread: any.
#pragma once

#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

// `chat`: an object with `messages`, as render_chat() takes it. In it
//   - a content that is null is empty, or the refusal beside it,
//   - the role `developer` is `system`, the older `function` is `tool`,
//   - parts of the types input_text, output_text and refusal are text, input_image is an image,
//   - arguments of a call that are JSON text become the object they hold; null, "null", "" and none
//     at all become {},
//   - the older `function_call` becomes a tool call.
// Errors: bad_input, with the path, where there are no messages, where a role or the type of a part
// is unknown, or where arguments are no object.
Result<void> normalise_chat(Json& chat);

}  // namespace glmd
