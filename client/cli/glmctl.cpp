// glmctl: asks glmd, from a shell. The answer alone on stdout; one line on stderr and an exit code
// of sysexits.h when something is wrong.
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <map>

#include "client/cli/ask.h"
#include "client/cli/status.h"

namespace glmd {
namespace {

constexpr const char* default_socket = "/run/glmd/glmd.sock";
constexpr int exit_usage = 64;
constexpr int exit_pipe = 141;  // as a shell reports SIGPIPE

void add_ask_options(CLI::App& command, AskOptions& options) {
  command.add_option("PROMPT", options.prompt, "The question; - for standard input");
  command.add_option("-s,--system", options.system, "The system prompt");
  command.add_option("-f,--file", options.files, "Append a file's content")
      ->allow_extra_args(false);
  command.add_option("--max", options.tokens_max, "At most so many tokens")
      ->check(CLI::PositiveNumber);
  command.add_option("--seed", options.seed, "The same seed gives the same text");
  command.add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  command.add_option("--top-p", options.top_p, "Sample from this share of the likeliest tokens")
      ->check(CLI::Range(1e-9, 1.0));
  command.add_option("--stop", options.stops, "End before this text")->allow_extra_args(false);
  command.add_flag("--think,!--no-think", options.is_thinking, "Let the model think first, or not");
  command.add_option("--effort", options.effort, "How hard to think")
      ->check(CLI::IsMember({"high", "max"}));
  command.add_flag("--json", options.is_json, "Print one JSON object");
  command.add_flag("-q,--quiet", options.is_quiet, "Do not show thoughts");
  command.add_option("--color", options.color, "Dim thoughts: auto, always or never")
      ->transform(CLI::Transformer(std::map<std::string, Color>{
          {"auto", Color::automatic}, {"always", Color::always}, {"never", Color::never}}));
  command.add_option("--timeout", options.timeout_s, "Give up after so many seconds")
      ->check(CLI::PositiveNumber);
}

int report(const Result<int>& result) {
  if (result.ok()) return result.value();
  if (result.error().kind == ErrorKind::cancelled) {
    // The reader of a pipe left, or the user interrupted: no words needed.
    return result.error().message == "interrupted" ? exit_interrupted : exit_pipe;
  }
  std::fprintf(stderr, "glmctl: %s\n", result.error().message.c_str());
  return exit_code(result.error().kind);
}

int run(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("Asks glmd, the GLM-5.2 daemon.", "glmctl");
  app.set_version_flag("--version", "glmctl " GLMD_VERSION);
  app.require_subcommand(1);
  std::string socket_path = default_socket;
  app.add_option("--socket", socket_path, "glmd's socket")
      ->envname("GLMD_SOCKET")
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
  wait_command->add_option("--timeout", timeout_s, "Give up after so many seconds")
      ->check(CLI::NonNegativeNumber);

  try {  // CLI11 reports by exceptions; they end here
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& failure) {
    std::fprintf(stderr, "glmctl: %s\n", failure.what());
    return exit_usage;
  }
  options.socket_path = socket_path;
  if (ask_command->parsed()) return report(ask(options));
  if (status_command->parsed()) return report(print_status(socket_path, is_json));
  if (plan_command->parsed()) return report(print_plan(socket_path, is_json));
  if (doctor_command->parsed()) return report(print_doctor(socket_path, is_json));
  if (ping_command->parsed()) return report(ping(socket_path));
  if (wait_command->parsed()) return report(wait_until_ready(socket_path, timeout_s));
  return exit_usage;
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  return glmd::run(argc, argv);
}
