// What the administrator may set: on the command line and, with the same names, in a TOML file. The
// command line wins; an unknown key is an error that names its line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/look_ahead.h"
#include "kv/kv_format.h"
#include "platform/log.h"
#include "platform/result.h"
#include "storage/reader_choice.h"

namespace glmd {

struct Settings {
  std::optional<std::string> model;
  std::string socket = "/run/glmd/glmd.sock";
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t> context_tokens;
  std::optional<int64_t> sessions;
  std::optional<int> threads;
  std::string kernels = "auto";
  std::optional<std::string> state_directory;  // else the first of $STATE_DIRECTORY; may be none
  bool keeps_usage_history = true;             // in the state directory
  std::optional<std::string> trace_routing;    // write routing choices to this file
  ReaderKind reader = ReaderKind::automatic;
  LookAhead look_ahead = LookAhead::automatic;
  Verify verify = Verify::first_read;
  KvFormat kv_format = KvFormat::f16;
  std::vector<std::string> mirrors;
  std::optional<std::string> config;
  LogLevel log_level = LogLevel::info;
  enum class Action { serve, plan, doctor, check } action = Action::serve;
  bool is_json = false;  // of plan and doctor
};

// Of a command line whose settings may be wrong: how it wants to be told.
struct Asked {
  Settings::Action action = Settings::Action::serve;
  bool is_json = false;
};

// Empty where the command line only asked for help or the version; then it was printed. `asked` is
// filled in before any value is looked at.
Result<std::optional<Settings>> read_settings(int argc, const char* const* argv,
                                              Asked* asked = nullptr);

// "8G", "512MiB", "64gb", "1000000": bytes, in powers of 1024.
Result<int64_t> parse_bytes(std::string_view text);

}  // namespace glmd
