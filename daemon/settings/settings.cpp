#include "settings/settings.h"

#include <CLI/CLI.hpp>

#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

#include <toml++/toml.h>

#include "platform/file.h"

namespace glmd {
namespace {

constexpr int64_t config_bytes_max = 1 << 20;
constexpr const char* config_default = "/etc/glmd/glmd.toml";  // read if it exists

Result<int64_t> parse_count(std::string_view name, std::string_view text, int64_t least,
                            int64_t most) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < least ||
      value > most) {
    return error(ErrorKind::config, "{}: wanted a number from {} to {}, got \"{}\"", name, least,
                 most, text);
  }
  return value;
}

Result<std::string> parse_path(std::string_view name, const std::string& text) {
  if (text.empty()) return error(ErrorKind::config, "{}: wanted a path, got an empty one", name);
  if (text.find('\0') != std::string::npos) {
    return error(ErrorKind::config, "{}: wanted a path, got one with a zero byte", name);
  }
  return text;
}

std::optional<std::string> kernels_from(std::string_view name) {
  if (name != "auto" && name != "scalar" && name != "avx2" && name != "avx512") return std::nullopt;
  return std::string(name);
}

std::optional<bool> switch_from(std::string_view name) {
  if (name != "on" && name != "off") return std::nullopt;
  return name == "on";
}

// How the text of a key becomes a setting; what is wrong with it is told with the key.
using Setter =
    std::function<Result<void>(Settings&, std::string_view key, const std::string& text)>;

template <typename Target>
Setter path(Target Settings::*setting) {
  return [=](Settings& settings, std::string_view key, const std::string& text) -> Result<void> {
    settings.*setting = TRY(parse_path(key, text));
    return {};
  };
}

template <typename Count>
Setter count(std::optional<Count> Settings::*setting, int64_t least, int64_t most) {
  return [=](Settings& settings, std::string_view key, const std::string& text) -> Result<void> {
    settings.*setting = static_cast<Count>(TRY(parse_count(key, text, least, most)));
    return {};
  };
}

template <typename Choice>
Setter choice(Choice Settings::*setting, std::optional<Choice> (*parse)(std::string_view),
              const char* names) {
  return [=](Settings& settings, std::string_view key, const std::string& text) -> Result<void> {
    const std::optional<Choice> chosen = parse(text);
    if (!chosen) {
      return error(ErrorKind::config, "{}: wanted {}, got \"{}\"", key, names, text);
    }
    settings.*setting = *chosen;
    return {};
  };
}

Result<void> set_memory(Settings& settings, std::string_view key, const std::string& text) {
  settings.memory_bytes = TRY_CONTEXT(parse_bytes(text), key);
  return {};
}

// Every key once.
const std::map<std::string, Setter, std::less<>>& setters() {
  static const std::map<std::string, Setter, std::less<>> table = {
      {"model", path(&Settings::model)},
      {"socket", path(&Settings::socket)},
      {"memory", set_memory},
      {"context", count(&Settings::context_tokens, 16, 1 << 24)},
      {"sessions", count(&Settings::sessions, 1, 4096)},
      {"threads", count(&Settings::threads, 1, 1024)},
      {"kernels", choice(&Settings::kernels, kernels_from, "auto, scalar, avx2 or avx512")},
      {"state-directory", path(&Settings::state_directory)},
      {"usage-history", choice(&Settings::keeps_usage_history, switch_from, "on or off")},
      {"trace-routing", path(&Settings::trace_routing)},
      {"reader", choice(&Settings::reader, reader_kind_from, "auto, io_uring or threads")},
      {"verify", choice(&Settings::verify, verify_from, "first or always")},
      {"look-ahead", choice(&Settings::look_ahead, look_ahead_from, "on, off or auto")},
      {"kv-format", choice(&Settings::kv_format, kv_format_from, "f16 or int8")},
      {"log-level",
       choice(&Settings::log_level, log_level_from, "error, warning, notice, info or debug")},
  };
  return table;
}

Result<void> read_mirrors(const toml::node& node, Settings& settings) {
  const toml::array* folders = node.as_array();
  if (folders == nullptr) return error(ErrorKind::config, "mirrors: wanted a list of folders");
  for (const toml::node& folder : *folders) {
    if (!folder.is_string()) return error(ErrorKind::config, "mirrors: wanted a list of folders");
    settings.mirrors.push_back(TRY(parse_path("mirrors", folder.as_string()->get())));
  }
  return {};
}

Result<void> read_config(const std::string& path, Settings& settings) {
  const Result<std::string> text = read_input(path, config_bytes_max);
  if (!text.ok()) return error(ErrorKind::config, "configuration: {}", text.error().message);
  toml::table table;
  try {  // the library's way of saying no; it ends here
    table = toml::parse(text.value(), path);
  } catch (const toml::parse_error& fault) {
    return error(ErrorKind::config, "{}: line {}: {}", path, fault.source().begin.line,
                 fault.description());
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const auto line = node.source().begin.line;
    if (name == "mirrors") {
      TRY_CONTEXT(read_mirrors(node, settings), fmt::format("{}: line {}", path, line));
      continue;
    }
    const auto setter = setters().find(name);
    if (setter == setters().end()) {
      return error(ErrorKind::config, "{}: line {}: unknown key \"{}\"", path, line, name);
    }
    std::string value;
    if (const auto* text_value = node.as_string()) {
      value = text_value->get();
    } else if (const auto* number = node.as_integer()) {
      value = std::to_string(number->get());
    } else {
      return error(ErrorKind::config, "{}: line {}: {}: wanted a string or a whole number", path,
                   line, name);
    }
    TRY_CONTEXT(setter->second(settings, name, value), fmt::format("{}: line {}", path, line));
  }
  return {};
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(text.substr(static_cast<size_t>(parsed.ptr - text.data())));
  for (char& letter : unit) letter = static_cast<char>(std::toupper(static_cast<uint8_t>(letter)));
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  for (const auto& [letter, bits] : {std::pair{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}}) {
    const std::string name(1, letter);
    if (unit == name || unit == name + "B" || unit == name + "IB") shift = bits;
  }
  if (parsed.ec != std::errc() || shift < 0 || value <= 0 || value > (INT64_MAX >> shift)) {
    return error(ErrorKind::config, "wanted bytes such as 8G or 512M, got \"{}\"", text);
  }
  return value << shift;
}

Result<std::optional<Settings>> read_settings(int argc, const char* const* argv, Asked* asked) {
  CLI::App app("Serves a GLM-5.2 model on a Unix socket.", "glmd");
  app.set_version_flag("--version", "glmd " GLMD_VERSION);
  std::map<std::string, std::string> given;
  const auto option = [&](const std::string& name, const char* placeholder, const char* help) {
    app.add_option("--" + name, given[name], help)->type_name(placeholder);
  };
  option("model", "DIR", "container to serve (default: the embedded model)");
  option("socket", "PATH",
         "listen here, unless systemd passes a socket (default: /run/glmd/glmd.sock)");
  option("memory", "BYTES", "budget, e.g. 24G (default: what is free and allowed)");
  option("context", "TOKENS", "longest conversation, prompt and answer together");
  option("sessions", "N", "requests worked on at once (default: 4)");
  option("threads", "N", "threads that compute (default: one per physical core)");
  option("kernels", "NAME", "auto (the default), scalar, avx2 or avx512");
  option("state-directory", "DIR", "what is kept from run to run (default: $STATE_DIRECTORY)");
  option("usage-history", "on|off", "keep there which experts are used most (default: on)");
  option("trace-routing", "FILE", "write which experts every token goes to, for glmd-replay");
  option("reader", "NAME", "what reads experts: auto (the default), io_uring or threads");
  option("verify", "WHEN",
         "checksums of experts: first (read only, the default) or always (with mirrors always)");
  option("look-ahead", "MODE",
         "read experts before they are asked for: on, off or auto (the default)");
  option("kv-format", "NAME",
         "keys of attention: f16 (the default), or int8 in two thirds of the memory");
  option("log-level", "L", "error, warning, notice, info (the default) or debug");
  Settings settings;
  std::vector<std::string> mirrors;
  app.add_option("--mirror", mirrors, "another disk's copy of the experts; may be repeated")
      ->type_name("DIR");
  app.add_option("--config", settings.config, "read settings from this TOML file")
      ->type_name("FILE");
  bool wants_plan = false, wants_doctor = false, wants_check = false;
  auto* plan =
      app.add_flag("--plan", wants_plan, "print machine, memory plan and expected speed, and exit");
  auto* doctor = app.add_flag("--doctor", wants_doctor, "say what will not work here, and exit");
  auto* check = app.add_flag("--check", wants_check, "check settings and model, and exit");
  auto* json = app.add_flag("--json", settings.is_json, "with --plan or --doctor: one JSON object");
  json->excludes(check);
  plan->excludes(doctor)->excludes(check);
  doctor->excludes(check);
  try {  // the library's way of saying no; it ends here
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    if (fault.get_exit_code() == 0) {
      app.exit(fault);
      return std::optional<Settings>();
    }
    return error(ErrorKind::usage, "{} (--help lists the options)", fault.what());
  }
  settings.action = wants_plan     ? Settings::Action::plan
                    : wants_doctor ? Settings::Action::doctor
                    : wants_check  ? Settings::Action::check
                                   : Settings::Action::serve;
  if (settings.is_json && !wants_plan && !wants_doctor) {
    return error(ErrorKind::usage, "--json: wanted --plan or --doctor with it");
  }
  if (asked != nullptr) *asked = {settings.action, settings.is_json};
  if (settings.config && settings.config->empty()) {
    return error(ErrorKind::usage, "--config: wanted a path, got an empty one");
  }
  if (!settings.config && path_exists(config_default)) settings.config = config_default;
  if (settings.config) TRY(read_config(*settings.config, settings));
  for (const auto& [name, value] : given) {
    if (app.count("--" + name) == 0) continue;
    const Result<void> result = setters().at(name)(settings, name, value);
    if (!result.ok()) return error(ErrorKind::usage, "--{}", result.error().message);
  }
  const char* state_directories = std::getenv("STATE_DIRECTORY");  // systemd's, with colons between
  if (!settings.state_directory && state_directories != nullptr && *state_directories != 0) {
    const std::string list = state_directories;
    settings.state_directory = list.substr(0, list.find(':'));
  }
  for (const std::string& mirror : mirrors) {
    if (mirror.empty()) return error(ErrorKind::usage, "--mirror: wanted a path, got an empty one");
  }
  if (!mirrors.empty()) settings.mirrors = std::move(mirrors);
  return std::optional<Settings>(std::move(settings));
}

}  // namespace glmd
