// `glmctl ask`: one question, the answer streamed to stdout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/terminal.h"
#include "platform/result.h"

namespace glmd {

struct AskOptions {
  std::string socket_path;
  std::vector<std::string> prompt;  // words, joined by spaces; "-": stdin
  std::string system;
  std::vector<std::string> files;
  std::optional<int64_t> tokens_max;
  std::optional<uint64_t> seed;
  std::optional<double> temperature, top_p;
  std::vector<std::string> stops;
  std::optional<bool> is_thinking;
  std::string effort;
  bool is_json = false;
  bool is_quiet = false;  // no thoughts on stderr
  Color color = Color::automatic;
  std::optional<double> timeout_s;
};

Result<int> ask(const AskOptions& options);  // the exit code

}  // namespace glmd
