// How every tool begins and ends: its command line read, mistakes told in one line with its name.
// What options take is stricter than CLI11's own checks, and told in words.
#pragma once

#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/open_files.h"
#include "platform/shortage.h"
#include "platform/standard_streams.h"

namespace glmd {

// The first thing in main. `program` outlives the process.
inline void begin_program(const char* program) {
  hold_standard_streams();
  end_on_shortage(program);
  raise_open_files_limit();
}

// The number that all of `text` is, in decimal.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

// For transform(). CLI::Range takes nan, and -1 for 2^64-1; CLI11 reads 010 as octal.
template <typename Number>
CLI::Validator within(Number least, Number most) {
  const std::string range = fmt::format("{} to {}", least, most);
  const auto read = [=](std::string& text) -> std::string {
    const std::optional<Number> number = parse_number<Number>(text);
    if (!number || !(*number >= least && *number <= most))
      return fmt::format("wanted {}, got \"{}\"", range, text);
    text = fmt::format("{}", *number);
    return "";
  };
  return {read, range};
}

// For transform(): bytes such as 8G or 512M. CLI::AsSizeValue takes -1.
inline CLI::Validator byte_size(int64_t least) {
  const auto read = [least](std::string& text) -> std::string {
    const std::string given = text;
    std::optional<int64_t> bytes;
    try {
      if (CLI::AsSizeValue(false)(text).empty()) bytes = parse_number<int64_t>(text);
    } catch (const CLI::ValidationError&) {
    }
    if (bytes && *bytes >= least) return "";
    return fmt::format("wanted at least {} bytes, as 8G or 512M, got \"{}\"", least, given);
  };
  return {read, "SIZE"};
}

// For transform(): the names of an enumeration. CLI::CheckedTransformer takes and shows its numbers
// too.
template <typename Enum>
CLI::Validator one_of(std::vector<std::pair<std::string, Enum>> names) {
  std::string list;
  for (const auto& [name, value] : names) list += (list.empty() ? "{" : ",") + name;
  list += "}";
  const auto read = [names = std::move(names), list](std::string& text) -> std::string {
    for (const auto& [name, value] : names) {
      if (text != name) continue;
      text = std::to_string(static_cast<int64_t>(value));
      return "";
    }
    return text + " not in " + list;
  };
  return {read, list};
}

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
