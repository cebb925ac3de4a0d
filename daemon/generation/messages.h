// What crosses between the loop thread and the compute thread: values, named by request id. No
// pointers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "platform/result.h"

namespace glmd {

// Unique in the process; the server maps it to (connection, client's id).
using RequestId = uint64_t;

enum class PromptFormat { raw, chat, tokens };

struct Submit {
  RequestId id = 0;
  PromptFormat format = PromptFormat::raw;
  std::string prompt;                 // raw text, chat JSON object, or JSON array of ids
  std::optional<int64_t> tokens_max;  // new tokens; unset: up to the context's end
  std::optional<double> temperature;  // unset: the checkpoint's default; 0: greedy
  std::optional<double> top_p;
  std::optional<uint64_t> seed;  // unset: random, echoed in Done
  std::vector<std::string> stops;
  bool markup_is_trusted = false;  // reference behaviour inside chat content
};
struct Cancel {
  RequestId id = 0;
};  // ends in Failed{CANCELLED}
struct Stop {
  RequestId id = 0;
};  // ends in Done{reason=stop}
// The reader of this request is slow (or not any more): the session makes no tokens while held.
struct Hold {
  RequestId id = 0;
  bool is_held = false;
};
struct Drain {};  // new Submits fail with DRAINING; running ones end
struct Quit {};   // running ones end in Failed{DRAINING}; the thread returns

struct Prompt {
  std::vector<int32_t> tokens;
  bool is_chat = false;  // what stands before </think> is thought; turn_markers() end the answer
  bool starts_in_thought = false;  // the template opened <think> already
};
// From prompt_thread: the tokens of a long Submit, whose text is gone.
struct PromptReady {
  Submit submit;
  Result<Prompt> prompt;
};
// The arena of experts should have this size from the next step on.
struct ResizeExperts {
  int64_t arena_bytes = 0;
};

using Command = std::variant<Submit, PromptReady, Cancel, Stop, Hold, ResizeExperts, Drain, Quit>;

struct Queued {
  RequestId id = 0;
  int64_t position = 0;
};
struct Accepted {
  RequestId id = 0;
  int64_t slot = 0, prompt_tokens = 0, cached_tokens = 0;
};
struct PrefillProgress {
  RequestId id = 0;
  int64_t done_tokens = 0, prompt_tokens = 0;
};
struct Text {
  RequestId id = 0;
  bool is_thought = false;
  std::string text;
};  // whole code points
struct Done {
  RequestId id = 0;
  std::string reason;  // "stop", "length"
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  uint64_t seed = 0;
  double first_token_ms = 0, tokens_per_second = 0;
};
struct Failed {
  RequestId id = 0;
  std::string code;  // glmd-protocol(7): EMPTY_PROMPT, CONTEXT_EXCEEDED, CANCELLED, ENGINE, ...
  std::string message;
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t retry_ms = 0;  // 0: no advice
};
struct StatusSnapshot {
  std::string json;
};                      // the latest; answers STATUS
struct EngineReady {};  // weights are resident
struct EngineStopped {
  std::string error;
};  // empty after Quit

using Event = std::variant<Queued, Accepted, PrefillProgress, Text, Done, Failed, StatusSnapshot,
                           EngineReady, EngineStopped>;

}  // namespace glmd
