// glmctl: asks glmd, from a shell. The answer alone on stdout; one line on stderr and an exit code
// of sysexits.h when something is wrong.
#include <CLI/CLI.hpp>

#include <charconv>
#include <csignal>
#include <cstdio>

#include "client/cli/ask.h"
#include "client/cli/status.h"
#include "platform/shortage.h"
#include "platform/standard_streams.h"
#include "protocol/limits.h"

namespace glmd {
namespace {

constexpr const char* default_socket = "/run/glmd/glmd.sock";
constexpr int exit_usage = 64;
constexpr int exit_pipe = 141;  // as a shell reports SIGPIPE
constexpr double timeout_s_max = 1e9;

// CLI11 would take -1 for 2^64-1, and nan.
template <typename Number>
CLI::Option* add_number(CLI::App& command, const std::string& name, std::optional<Number>& target,
                        Number least, Number most, const std::string& help) {
  const auto read = [name, &target, least, most](const std::string& text) {
    Number number{};
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == end;
    if (!is_number || !(number >= least && number <= most)) {
      throw CLI::ValidationError(
          name, fmt::format("wanted a number from {} to {}, got \"{}\"", least, most, text));
    }
    target = number;
  };
  return command.add_option_function<std::string>(name, read, help)->type_name("NUMBER");
}

std::string is_named(const std::string& path) {
  return path.empty() ? "wanted a path, got an empty one" : "";
}

void add_ask_options(CLI::App& command, AskOptions& options) {
  command.add_option("PROMPT", options.prompt, "The question; - for standard input");
  command.add_option("-s,--system", options.system, "The system prompt");
  command.add_option("-f,--file", options.files, "Append a file's content")
      ->allow_extra_args(false)
      ->check(is_named);
  add_number<int64_t>(command, "--max", options.tokens_max, 1, protocol::tokens_max_max,
                      "At most so many tokens");
  add_number<uint64_t>(command, "--seed", options.seed, 0, UINT64_MAX,
                       "The same seed gives the same text");
  add_number<double>(command, "--temperature", options.temperature, 0, protocol::temperature_max,
                     "0: always the likeliest token");
  add_number<double>(command, "--top-p", options.top_p, 1e-9, 1,
                     "Sample from this share of the likeliest tokens");
  command.add_option("--stop", options.stops, "End before this text")->allow_extra_args(false);
  // Not given, it is for the model to say; CLI11 would set the optional all the same.
  command.add_flag_function(
      "--think,!--no-think", [&](int64_t count) { options.is_thinking = count > 0; },
      "Let the model think first, or not");
  command.add_option("--effort", options.effort, "How hard to think")
      ->check(CLI::IsMember({"high", "max"}));
  command.add_flag("--json", options.is_json, "Print one JSON object");
  command.add_flag("-q,--quiet", options.is_quiet, "Do not show thoughts");
  command
      .add_option_function<std::string>(
          "--color",
          [&](const std::string& when) {
            options.color = when == "always"  ? Color::always
                            : when == "never" ? Color::never
                                              : Color::automatic;
          },
          "Dim thoughts: auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  add_number<double>(command, "--timeout", options.timeout_s, 0.001, timeout_s_max,
                     "Give up after so many seconds");
}

int report(const Result<int>& result) {
  if (result.ok()) return result.value();
  // The reader of a pipe left: no words needed.
  if (result.error().kind == ErrorKind::cancelled) return exit_pipe;
  std::fprintf(stderr, "glmctl: %s\n", printable(result.error().message).c_str());
  return exit_code(result.error().kind);
}

int run(int argc, char** argv) {
  CLI::App app("Asks glmd, the GLM-5.2 daemon.", "glmctl");
  app.set_version_flag("--version", "glmctl " GLMD_VERSION);
  app.require_subcommand(0, 1);  // with 1, a mistyped command would not be named
  std::string socket_path = default_socket;
  app.add_option("--socket", socket_path, "glmd's socket")
      ->envname("GLMD_SOCKET")
      ->check(is_named)
      ->capture_default_str();
  app.fallthrough();

  AskOptions options;
  bool is_json = false;
  std::optional<double> timeout_s;
  CLI::App* ask_command = app.add_subcommand("ask", "Ask a question");
  add_ask_options(*ask_command, options);
  CLI::App* status_command = app.add_subcommand("status", "Show what glmd does");
  status_command->add_flag("--json", is_json, "Print the JSON object");
  CLI::App* plan_command = app.add_subcommand("plan", "Show machine, model and memory plan");
  plan_command->add_flag("--json", is_json, "Print the JSON object");
  CLI::App* doctor_command = app.add_subcommand("doctor", "Say what is wrong, and what helps");
  doctor_command->add_flag("--json", is_json, "Print the JSON object");
  CLI::App* ping_command = app.add_subcommand("ping", "Check that glmd answers");
  CLI::App* wait_command = app.add_subcommand("wait-ready", "Wait until the model is loaded");
  add_number<double>(*wait_command, "--timeout", timeout_s, 0, timeout_s_max,
                     "Give up after so many seconds");

  try {  // CLI11 reports by exceptions; they end here
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& failure) {
    std::fprintf(stderr, "glmctl: %s\n", failure.what());
    return exit_usage;
  }
  std::signal(SIGPIPE, SIG_IGN);  // a failed write says it, and so does a closed connection
  options.socket_path = socket_path;
  if (ask_command->parsed()) return report(ask(options));
  if (status_command->parsed()) return report(print_status(socket_path, is_json));
  if (plan_command->parsed()) return report(print_plan(socket_path, is_json));
  if (doctor_command->parsed()) return report(print_doctor(socket_path, is_json));
  if (ping_command->parsed()) return report(ping(socket_path));
  if (wait_command->parsed()) return report(wait_until_ready(socket_path, timeout_s));
  std::fprintf(stderr, "glmctl: wanted a command, got none (--help lists them)\n");
  return exit_usage;
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  glmd::hold_standard_streams();
  glmd::end_on_shortage("glmctl");
  return glmd::finish_program("glmctl", glmd::run(argc, argv));
}
