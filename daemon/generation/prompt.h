// What a client submits, as token ids: raw text as the reference tokenises it, a conversation
// through the chat template, or ids as they are. Thread: any.
#pragma once

#include <cstdint>

#include "generation/messages.h"
#include "platform/result.h"
#include "text/tokenizer.h"

namespace glmd {

// `tokenizer` may be null: a checkpoint without one takes token ids only. Errors are the client's;
// no_memory where the text is longer than `text_bytes_max`.
Result<Prompt> make_prompt(const Submit& submit, const Tokenizer* tokenizer, int64_t vocabulary,
                           int64_t text_bytes_max);

}  // namespace glmd
