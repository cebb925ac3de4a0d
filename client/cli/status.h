// `glmctl status`, `plan`, `doctor`, `ping` and `wait-ready`.
#pragma once

#include <optional>
#include <string>

#include "platform/result.h"
#include "protocol/reply.h"

namespace glmd {

constexpr int exit_interrupted = 130;  // as a shell reports SIGINT

ErrorKind kind_of(protocol::ErrorCode code);
Error error_of(const protocol::Failed& failed);

Result<int> print_status(const std::string& socket_path, bool is_json);
// `glmctl plan` and `doctor`: what the running daemon planned and found when it started; where none
// runs, `glmd --plan` or `--doctor` takes this process's place.
Result<int> print_plan(const std::string& socket_path, bool is_json);
Result<int> print_doctor(const std::string& socket_path, bool is_json);
Result<int> ping(const std::string& socket_path);
Result<int> wait_until_ready(const std::string& socket_path, std::optional<double> timeout_s);

}  // namespace glmd
