#include "client/cli/status.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/terminal.h"
#include "client/daemon_client.h"
#include "plan/plan_table.h"
#include "platform/clock.h"
#include "platform/json.h"

namespace glmd {
namespace {

using protocol::ErrorCode;

constexpr int64_t answer_limit_ms = 10'000;
constexpr int64_t first_answer_limit_ms = 1'000;  // be the limit of wait-ready shorter
constexpr int poll_interval_ms = 200;

// What the daemon told: as it came, and its values.
struct Told {
  std::string text;
  Json json;
};

Result<Told> query(const std::string& socket_path, const protocol::Request& request,
                   int64_t limit_ms = answer_limit_ms) {
  DaemonClient client = TRY(DaemonClient::connect(socket_path));
  const int64_t deadline_ms = steady_ms() + limit_ms;
  const bool is_sent = TRY(client.send(request, deadline_ms));
  if (!is_sent) return error(ErrorKind::busy, "glmd does not read");
  const auto reply = TRY(client.receive(deadline_ms));
  if (!reply) return error(ErrorKind::busy, "glmd does not answer");
  if (const auto* failed = std::get_if<protocol::Failed>(&*reply)) return error_of(*failed);
  const auto* info = std::get_if<protocol::Info>(&*reply);
  if (info == nullptr) return error(ErrorKind::protocol, "glmd sent something else than an answer");
  Result<Json> json = parse_json(info->json, "glmd's answer");
  if (!json.ok()) return error(ErrorKind::protocol, "{}", json.error().message);
  return Told{info->json, std::move(json).value()};
}

// "/srv/a, in use, failures 0": what stands for itself, and the rest with its name.
std::string row_of(const Json& object) {
  std::string row;
  for (const auto& [key, value] : object.members()) {
    row += row.empty() ? "" : ", ";
    row += value.is_string() ? value.as_string() : key + " " + value.to_string();
  }
  return printable(row);
}

bool is_list_of_objects(const Json& value) {
  return value.is_array() && !value.items().empty() && value.items()[0].is_object();
}

// "requests.live  2": one line a value, names joined by points; a line an object of a list.
void append_lines(std::string& out, const std::string& name, const Json& value) {
  if (is_list_of_objects(value)) {
    for (const Json& item : value.items()) {
      out += fmt::format("{:<28} {}\n", name, item.is_object() ? row_of(item) : item.to_string());
    }
    return;
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.members()) {
      append_lines(out, name.empty() ? key : name + "." + key, member);
    }
    return;
  }
  const std::string text = value.is_string() ? printable(value.as_string()) : value.to_string();
  if (!value.is_null()) out += fmt::format("{:<28} {}\n", name, text);
}

// Text that others wrote moves no cursor, wherever in the value it stands.
Json printable_value(const Json& value) {
  if (value.is_string()) return Json::string(printable(value.as_string()));
  if (!value.is_object()) return value;
  Json copy = Json::object();
  for (const auto& [key, member] : value.members()) copy.set(key, printable_value(member));
  return copy;
}

const Json* find_path(const Json& value, std::initializer_list<std::string_view> path) {
  const Json* found = &value;
  for (const std::string_view name : path) {
    if (!found->is_object() || (found = found->find(name)) == nullptr) return nullptr;
  }
  return found;
}

// A plan is made before anything is measured; what the run has measured since, its status tells.
void add_measured(Json& plan, const Json& status) {
  if (!plan.is_object()) return;
  const Json* measured = find_path(status, {"engine", "measured"});
  Json known = measured != nullptr && measured->is_object() ? *measured : Json::object();
  if (const Json* disk = find_path(status, {"engine", "speed", "best_read_bytes_per_s"})) {
    known.set("disk_bytes_per_s", *disk);
  }
  if (known.members().empty()) return;
  plan.set("measured", std::move(known));
  add_expected(plan);
}

// The plan or findings of what would be served without any option, which is not what was asked for.
// glmd stands beside glmctl in the build tree, in ../sbin where installed, or in the PATH. Returns
// only where it cannot be run.
Error run_glmd(const std::string& socket_path, const char* action, bool is_json) {
  std::fprintf(stderr, "glmctl: no daemon at %s: this is what `glmd %s` says\n",
               printable(socket_path).c_str(), action);
  std::error_code failure;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", failure).parent_path();
  // The nearest first.
  std::vector<std::string> places = {(own / "glmd").string(),
                                     (own.parent_path() / "sbin" / "glmd").string(), "glmd"};
  for (std::string& place : places) {
    std::vector<char*> arguments = {place.data(), const_cast<char*>(action)};
    std::string json = "--json";
    if (is_json) arguments.push_back(json.data());
    arguments.push_back(nullptr);
    ::execvp(place.c_str(), arguments.data());
  }
  return error(ErrorKind::unavailable, "no daemon answers, and glmd cannot be run: {}",
               std::strerror(errno));
}

std::string text_of(const Json& object, const char* name) {
  const Json* value = object.is_object() ? object.find(name) : nullptr;
  return value && value->is_string() ? value->as_string() : "";
}

Result<void> print_findings(const Json& answer) {
  const Json* findings = answer.is_object() ? answer.find("findings") : nullptr;
  if (findings == nullptr || !findings->is_array()) {
    return error(ErrorKind::protocol, "DOCTOR answer: wanted findings");
  }
  std::string text;
  for (const Json& finding : findings->items()) {
    text +=
        printable(text_of(finding, "severity")) + ": " + printable(text_of(finding, "what")) + "\n";
    const std::string remedy = printable(text_of(finding, "remedy"));
    if (!remedy.empty()) text += "  remedy: " + remedy + "\n";
  }
  return write_answer(text.empty() ? "nothing is wrong\n" : text);
}

// What to wait for, or nothing once the daemon is ready. An unreachable one may not have started
// yet.
Result<std::optional<std::string>> find_hindrance(const std::string& socket_path,
                                                  int64_t limit_ms) {
  auto told = query(socket_path, protocol::Ping{}, limit_ms);
  if (!told.ok()) {
    const ErrorKind kind = told.error().kind;
    if (kind != ErrorKind::unavailable && kind != ErrorKind::busy) return std::move(told).error();
    return std::optional(std::move(told).error().message);
  }
  const std::string state = text_of(told.value().json, "state");
  if (state == "ready") return std::optional<std::string>();
  return std::optional("glmd at " + socket_path + " is " + state);
}

}  // namespace

ErrorKind kind_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::loading:
    case ErrorCode::draining:
    case ErrorCode::queue_full:
    case ErrorCode::queue_timeout:
    case ErrorCode::slot_busy:
      return ErrorKind::busy;
    case ErrorCode::denied:
      return ErrorKind::denied;
    case ErrorCode::too_large:
    case ErrorCode::bad_value:
    case ErrorCode::empty_prompt:
    case ErrorCode::context_exceeded:
    case ErrorCode::grammar:
    case ErrorCode::slot_bad:
      return ErrorKind::bad_input;
    case ErrorCode::cancelled:  // by others; who cancels himself does not get here
    case ErrorCode::engine:
    case ErrorCode::internal:
    case ErrorCode::slow_client:
    case ErrorCode::deadline:
      return ErrorKind::internal;
    default:
      return ErrorKind::protocol;
  }
}

Error error_of(const protocol::Failed& failed) {
  std::string message(protocol::to_string(failed.code));
  if (!failed.message.empty()) message += ": " + failed.message;
  if (failed.retry_ms > 0) message += fmt::format(" (retry in {} ms)", failed.retry_ms);
  return {kind_of(failed.code), message};
}

Result<int> print_status(const std::string& socket_path, bool is_json) {
  const auto [told, json] = TRY(query(socket_path, protocol::Status{}));
  std::string text;
  if (is_json) {
    text = told + "\n";
  } else {
    append_lines(text, "", json);
  }
  TRY(write_answer(text));
  return 0;
}

Result<int> print_plan(const std::string& socket_path, bool is_json) {
  auto told = query(socket_path, protocol::Plan{});
  if (!told.ok() && told.error().kind == ErrorKind::unavailable) {
    return run_glmd(socket_path, "--plan", is_json);
  }
  Json plan = TRY(std::move(told)).json;
  add_measured(plan, TRY(query(socket_path, protocol::Status{})).json);
  TRY(write_answer(is_json ? plan.to_string() + "\n" : plan_table(printable_value(plan))));
  return 0;
}

Result<int> print_doctor(const std::string& socket_path, bool is_json) {
  auto told = query(socket_path, protocol::Doctor{});
  if (!told.ok() && told.error().kind == ErrorKind::unavailable) {
    return run_glmd(socket_path, "--doctor", is_json);
  }
  const auto [text, json] = TRY(std::move(told));
  if (is_json) {
    TRY(write_answer(text + "\n"));
  } else {
    TRY(print_findings(json));
  }
  const Json* code = json.is_object() ? json.find("exit_code") : nullptr;
  return code && code->is_integer() ? static_cast<int>(code->as_integer()) : 0;
}

Result<int> ping(const std::string& socket_path) {
  const int64_t begin_ms = steady_ms();
  const Told told = TRY(query(socket_path, protocol::Ping{}));
  const std::string state = printable(text_of(told.json, "state"));
  TRY(write_answer(
      fmt::format("{} {} ms\n", state.empty() ? "alive" : state, steady_ms() - begin_ms)));
  return 0;
}

Result<int> wait_until_ready(const std::string& socket_path, std::optional<double> timeout_s) {
  count_interrupts();
  bool has_told = false;
  std::optional<int64_t> deadline_ms;
  if (timeout_s) deadline_ms = steady_ms() + static_cast<int64_t>(*timeout_s * 1000);
  int64_t limit_least_ms = first_answer_limit_ms;  // so that a limit of 0 asks once
  while (interrupt_count() == 0) {
    const int64_t left_ms = deadline_ms ? *deadline_ms - steady_ms() : answer_limit_ms;
    const auto hindrance = TRY(find_hindrance(
        socket_path, std::clamp(left_ms, std::exchange(limit_least_ms, 0), answer_limit_ms)));
    if (!hindrance) return 0;
    if (deadline_ms && steady_ms() >= *deadline_ms) {
      return error(ErrorKind::timeout, "not ready within {} s: {}", *timeout_s, *hindrance);
    }
    // A mistyped path is waited for as well: say what for, unless the end will.
    if (!deadline_ms && !std::exchange(has_told, true)) {
      std::fprintf(stderr, "glmctl: waiting: %s\n", printable(*hindrance).c_str());
    }
    ::poll(nullptr, 0, poll_interval_ms);
  }
  return exit_interrupted;
}

}  // namespace glmd
