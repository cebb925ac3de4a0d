#include "plan/plan_table.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "plan/speed_estimate.h"
#include "platform/counted.h"

namespace glmd {
namespace {

constexpr double gibibyte = 1 << 30;
// Beyond, a token takes less than what sockets and clients take of the processors.
constexpr double tokens_per_s_told = 500;

const Json* member(const Json* object, std::string_view name) {
  return object != nullptr && object->is_object() ? object->find(name) : nullptr;
}

std::optional<double> real(const Json* object, std::string_view name) {
  const Json* value = member(object, name);
  return value != nullptr && value->is_number() ? std::optional(value->as_real()) : std::nullopt;
}

int64_t integer(const Json* object, std::string_view name) {
  const Json* value = member(object, name);
  return value != nullptr && value->is_integer() ? value->as_integer() : 0;
}

std::string text(const Json* object, std::string_view name) {
  const Json* value = member(object, name);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::string line(std::string_view name, std::string_view value) {
  return fmt::format("{:<16} {}\n", name, value);
}

std::string bytes_line(std::string_view name, int64_t bytes, std::string_view note) {
  return fmt::format("{:<16}{:>16} bytes {:>9.3f} GiB{}{}\n", name, bytes,
                     static_cast<double>(bytes) / gibibyte, note.empty() ? "" : "  ", note);
}

// Two digits, which is more than the estimate is good for.
std::string rounded(double value) {
  if (value <= 0) return "0";
  const int exponent = static_cast<int>(std::floor(std::log10(value)));
  const double unit = std::pow(10.0, exponent - 1);
  return fmt::format("{:.{}f}", std::round(value / unit) * unit, std::max(0, 1 - exponent));
}

std::string hardware_lines(const Json& hardware) {
  std::string lines =
      line("processor", fmt::format("{}, {}, {}, {} kernels", text(&hardware, "processor"),
                                    counted(integer(&hardware, "cores"), "core"),
                                    counted(integer(&hardware, "threads"), "thread"),
                                    text(&hardware, "kernels")));
  return lines +
         line("memory",
              fmt::format("{:.1f} GiB, swap {:.1f} GiB",
                          static_cast<double>(integer(&hardware, "memory_bytes")) / gibibyte,
                          static_cast<double>(integer(&hardware, "swap_bytes")) / gibibyte));
}

std::string model_lines(const Json& model) {
  std::string value = text(&model, "path");
  const std::string file_system = text(&model, "file_system");
  if (!file_system.empty()) value += " on " + file_system;
  const Json* has_direct = member(&model, "has_direct_reads");
  if (has_direct != nullptr && has_direct->is_boolean()) {
    value += has_direct->as_boolean() ? ", direct reads" : ", no direct reads";
  }
  std::string lines = line("model", value);
  if (member(&model, "experts") != nullptr) {
    lines +=
        line("experts",
             fmt::format("{} of {} bytes, {} for each token", integer(&model, "experts"),
                         integer(&model, "expert_bytes"), integer(&model, "experts_per_token")));
  }
  return lines;
}

std::string speed_text(const Json* measured, std::string_view name, int digits) {
  const std::optional<double> bytes_per_s = real(measured, name);
  return bytes_per_s ? fmt::format("{:.{}f} GB/s", *bytes_per_s / 1e9, digits)
                     : std::string("not measured yet");
}

std::string measured_line(const Json* measured) {
  return line("measured", fmt::format("experts from disk {}, memory {}",
                                      speed_text(measured, "disk_bytes_per_s", 2),
                                      speed_text(measured, "memory_bytes_per_s", 1)));
}

std::string expected_line(const Json* expected, const Json& token) {
  std::string value = "not known before it is measured";
  const std::optional<double> tokens_per_s = real(expected, "tokens_per_s");
  const std::optional<double> serial = real(expected, "serial_tokens_per_s");
  if (tokens_per_s && serial) {
    value = *tokens_per_s > tokens_per_s_told
                ? fmt::format("over {} tokens/s", tokens_per_s_told)
                : fmt::format("up to {} tokens/s", rounded(*tokens_per_s));
    value += ", bound by " + text(expected, "bound");
    if (*serial < 0.99 * *tokens_per_s && *tokens_per_s <= tokens_per_s_told) {
      value += fmt::format(" ({} if one waits for the other)", rounded(*serial));
    }
  }
  return line("expected",
              fmt::format("{}: hit rate {:.2f}, {:.3f} GB of disk and {:.3f} GB of memory a token",
                          value, real(&token, "hit_rate").value_or(0),
                          real(&token, "disk_bytes").value_or(0) / 1e9,
                          real(&token, "memory_bytes").value_or(0) / 1e9));
}

// One line where others have the processors.
std::string busy_line(const Json* load, int64_t cores) {
  const Json* is_busy = member(load, "is_busy");
  if (is_busy == nullptr || !is_busy->is_boolean() || !is_busy->as_boolean()) return "";
  std::string value =
      fmt::format("load {:.1f} on {}", real(load, "average").value_or(0), counted(cores, "core"));
  if (const auto percent = real(load, "waiting_percent")) {
    value += fmt::format(", work waited {:.0f} % of the time", *percent);
  }
  return line("busy", value + ": what was measured is that of a busy machine");
}

}  // namespace

void add_expected(Json& plan) {
  const Json* token = member(&plan, "token");
  const Json* measured = member(&plan, "measured");
  const std::optional<double> disk = real(measured, "disk_bytes_per_s");
  const std::optional<double> memory = real(measured, "memory_bytes_per_s");
  if (token == nullptr || memory.value_or(0) <= 0) return;
  const TokenNeeds needs = {.hit_rate = real(token, "hit_rate").value_or(0),
                            .disk_bytes = real(token, "disk_bytes").value_or(0),
                            .memory_bytes = real(token, "memory_bytes").value_or(0),
                            .head_bytes = real(token, "head_bytes").value_or(0),
                            .team_tasks = real(token, "team_tasks").value_or(0)};
  const bool needs_disk = needs.disk_bytes > 0;
  if (needs_disk && disk.value_or(0) <= 0) return;
  const SpeedEstimate estimate =
      estimate_speed(needs, {.disk_bytes_per_s = needs_disk ? *disk : 1,
                             .memory_bytes_per_s = *memory,
                             .team_task_s = real(measured, "team_task_s").value_or(0)});
  plan.set("expected",
           Json::object({{"tokens_per_s", Json::real(estimate.tokens_per_s)},
                         {"serial_tokens_per_s", Json::real(estimate.serial_tokens_per_s)},
                         {"bound", Json::string(estimate.bound)}}));
}

std::string plan_table(const Json& plan) {
  const Json* hardware = member(&plan, "hardware");
  const Json* token = member(&plan, "token");
  std::string table;
  if (hardware != nullptr) table += hardware_lines(*hardware);
  if (const Json* model = member(&plan, "model")) table += model_lines(*model);
  if (const Json* memory = member(&plan, "memory")) table += memory_table(*memory);
  if (token != nullptr) {
    table += measured_line(member(&plan, "measured"));
    table += expected_line(member(&plan, "expected"), *token);
  }
  return table + busy_line(member(hardware, "load"), integer(hardware, "cores"));
}

std::string memory_table(const Json& memory) {
  const auto bytes = [&](std::string_view name) { return integer(&memory, name); };
  const int64_t missed = bytes("missed_bytes"), experts = bytes("experts_bytes");
  std::string table =
      bytes_line("budget", bytes("budget_bytes"),
                 text(&memory, "budget_source") +
                     (missed > 0 ? fmt::format(", instead of {} bytes asked for", missed) : ""));
  table += bytes_line("dense weights", bytes("dense_bytes"), "always resident");
  table += bytes_line("KV cache", bytes("kv_bytes"),
                      fmt::format("{} of {} tokens", counted(bytes("sessions"), "session"),
                                  bytes("context_tokens")));
  table += bytes_line("scratch", bytes("scratch_bytes"),
                      fmt::format("passes of up to {}", counted(bytes("rows_max"), "row")));
  if (bytes("prompts_bytes") > 0) {
    table += bytes_line("prompts", bytes("prompts_bytes"),
                        fmt::format("of up to {} bytes", bytes("prompt_bytes_max")));
  }
  table += bytes_line("reserve", bytes("reserve_bytes"), "program, tokeniser, queues");
  table += bytes_line("expert arena", bytes("arena_bytes"),
                      fmt::format("{:.1f} % of the experts",
                                  experts == 0 ? 100.0
                                               : 100.0 * static_cast<double>(bytes("arena_bytes")) /
                                                     static_cast<double>(experts)));
  table += bytes_line("total", bytes("total_bytes"), "");
  if (bytes("floor_bytes") == 0) return table;
  return table + bytes_line("floor", bytes("floor_bytes"), "the least budget, with these settings");
}

}  // namespace glmd
