// How every tool begins and ends: its command line read, mistakes told in one line with its name.
#pragma once

#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "platform/standard_streams.h"

namespace glmd {

// The exit code where the program ends here: after --help and --version, or with a mistake.
inline std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return finish_program(app.get_name().c_str(), app.exit(done));
  } catch (const CLI::ParseError& failure) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), failure.what());
    return EX_USAGE;
  }
  // Not by require_subcommand(1), which would not name a mistyped one.
  const auto any = [](const CLI::App* one) { return !one->get_name().empty(); };  // no group
  if (!app.get_subcommands(any).empty() && app.get_subcommands().empty()) {
    std::fprintf(stderr, "%s: wanted a command, got none (--help lists them)\n",
                 app.get_name().c_str());
    return EX_USAGE;
  }
  return std::nullopt;
}

// The last thing in main: tells a failure of the program, or that its output was lost.
inline int end_program(const CLI::App& app, const Result<void>& result) {
  const char* name = app.get_name().c_str();
  if (!result.ok()) std::fprintf(stderr, "%s: %s\n", name, result.error().message.c_str());
  return finish_program(name, result.ok() ? EX_OK : exit_code(result.error().kind));
}

}  // namespace glmd
