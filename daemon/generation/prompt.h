// What a client submits, as token ids: raw text as the reference tokenises it, a conversation
// through the chat template, or ids as they are. Thread: any.
#pragma once

#include <cstdint>

#include "generation/messages.h"
#include "platform/result.h"
#include "text/tokenizer.h"

namespace glmd {

// `tokenizer` may be null: a checkpoint without one takes token ids only. Errors are the client's.
Result<Prompt> make_prompt(const Submit& submit, const Tokenizer* tokenizer, int64_t vocabulary);

}  // namespace glmd
