#include "settings.h"

#include <CLI/CLI.hpp>

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
  return text;
}

// Every key once: how its text becomes a setting.
using Setter = std::function<Result<void>(Settings&, const std::string&)>;

const std::map<std::string, Setter, std::less<>>& setters() {
  static const std::map<std::string, Setter, std::less<>> table = {
      {"model",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.model = TRY(parse_path("model", text));
         return {};
       }},
      {"socket",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.socket = TRY(parse_path("socket", text));
         return {};
       }},
      {"memory",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.memory_bytes = TRY_CONTEXT(parse_bytes(text), "memory");
         return {};
       }},
      {"context",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.context_tokens = TRY(parse_count("context", text, 16, 1 << 24));
         return {};
       }},
      {"sessions",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.sessions = TRY(parse_count("sessions", text, 1, 4096));
         return {};
       }},
      {"threads",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.threads = static_cast<int>(TRY(parse_count("threads", text, 1, 1024)));
         return {};
       }},
      {"kernels",
       [](Settings& s, const std::string& text) -> Result<void> {
         if (text != "auto" && text != "scalar" && text != "avx2" && text != "avx512") {
           return error(ErrorKind::config,
                        "kernels: wanted auto, scalar, avx2 or avx512, got \"{}\"", text);
         }
         s.kernels = text;
         return {};
       }},
      {"state-directory",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.state_directory = TRY(parse_path("state-directory", text));
         return {};
       }},
      {"usage-history",
       [](Settings& s, const std::string& text) -> Result<void> {
         if (text != "on" && text != "off") {
           return error(ErrorKind::config, "usage-history: wanted on or off, got \"{}\"", text);
         }
         s.keeps_usage_history = text == "on";
         return {};
       }},
      {"trace-routing",
       [](Settings& s, const std::string& text) -> Result<void> {
         s.trace_routing = TRY(parse_path("trace-routing", text));
         return {};
       }},
      {"reader",
       [](Settings& s, const std::string& text) -> Result<void> {
         const std::optional<ReaderKind> kind = reader_kind_from(text);
         if (!kind) {
           return error(ErrorKind::config, "reader: wanted auto, io_uring or threads, got \"{}\"",
                        text);
         }
         s.reader = *kind;
         return {};
       }},
      {"look-ahead",
       [](Settings& s, const std::string& text) -> Result<void> {
         const std::optional<LookAhead> mode = look_ahead_from(text);
         if (!mode) {
           return error(ErrorKind::config, "look-ahead: wanted on, off or auto, got \"{}\"", text);
         }
         s.look_ahead = *mode;
         return {};
       }},
      {"kv-format",
       [](Settings& s, const std::string& text) -> Result<void> {
         const std::optional<KvFormat> format = kv_format_from(text);
         if (!format) {
           return error(ErrorKind::config, "kv-format: wanted f16 or int8, got \"{}\"", text);
         }
         s.kv_format = *format;
         return {};
       }},
      {"log-level",
       [](Settings& s, const std::string& text) -> Result<void> {
         const std::optional<LogLevel> level = log_level_from(text);
         if (!level) {
           return error(ErrorKind::config,
                        "log-level: wanted error, warning, notice, info or debug, got \"{}\"",
                        text);
         }
         s.log_level = *level;
         return {};
       }},
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
    TRY_CONTEXT(setter->second(settings, value), fmt::format("{}: line {}", path, line));
  }
  return {};
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit = text.substr(static_cast<size_t>(parsed.ptr - text.data()));
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  for (const auto& [letter, bits] : {std::pair{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}}) {
    const std::string name(1, letter);
    if (unit == name || unit == name + "B" || unit == name + "iB") shift = bits;
  }
  if (parsed.ec != std::errc() || shift < 0 || value <= 0 || value > (INT64_MAX >> shift)) {
    return error(ErrorKind::config, "wanted bytes such as 8G or 512M, got \"{}\"", text);
  }
  return value << shift;
}

Result<std::optional<Settings>> read_settings(int argc, const char* const* argv) {
  CLI::App app("Serves a GLM-5.2 model on a Unix socket.", "glmd");
  app.set_version_flag("--version", "glmd " GLMD_VERSION);
  std::map<std::string, std::string> given;
  const auto option = [&](const std::string& name, const char* placeholder, const char* help) {
    app.add_option("--" + name, given[name], help)->type_name(placeholder);
  };
  option("model", "DIR", "container to serve (default: the embedded model)");
  option("socket", "PATH", "listen here, unless systemd passes a socket");
  option("memory", "BYTES", "budget, e.g. 24G (default: what is free and allowed)");
  option("context", "TOKENS", "longest conversation, prompt and answer together");
  option("sessions", "N", "requests worked on at once");
  option("threads", "N", "threads that compute (default: one per physical core)");
  option("kernels", "NAME", "auto, scalar, avx2 or avx512");
  option("state-directory", "DIR", "what is kept from run to run (default: $STATE_DIRECTORY)");
  option("usage-history", "on|off", "keep there which experts are used most (default: on)");
  option("trace-routing", "FILE", "write which experts every token goes to, for glmd-replay");
  option("reader", "NAME", "what reads experts: auto, io_uring or threads");
  option("look-ahead", "MODE", "read experts before they are asked for: on, off or auto");
  option("kv-format", "NAME", "keys of attention: f16, or int8 in two thirds of the memory");
  option("log-level", "L", "error, warning, notice, info or debug");
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
  if (settings.config && settings.config->empty()) {
    return error(ErrorKind::usage, "--config: wanted a path, got an empty one");
  }
  if (!settings.config && path_exists(config_default)) settings.config = config_default;
  if (settings.config) TRY(read_config(*settings.config, settings));
  for (const auto& [name, value] : given) {
    if (app.count("--" + name) == 0) continue;
    const Result<void> result = setters().at(name)(settings, value);
    if (!result.ok()) return error(ErrorKind::usage, "--{}", result.error().message);
  }
  const char* state_directories = std::getenv("STATE_DIRECTORY");  // systemd's, with colons between
  if (!settings.state_directory && state_directories != nullptr && *state_directories != 0) {
    const std::string list = state_directories;
    settings.state_directory = list.substr(0, list.find(':'));
  }
  if (settings.is_json && !wants_plan && !wants_doctor) {
    return error(ErrorKind::usage, "--json: wanted --plan or --doctor with it");
  }
  for (const std::string& mirror : mirrors) {
    if (mirror.empty()) return error(ErrorKind::usage, "--mirror: wanted a path, got an empty one");
  }
  if (!mirrors.empty()) settings.mirrors = std::move(mirrors);
  settings.action = wants_plan     ? Settings::Action::plan
                    : wants_doctor ? Settings::Action::doctor
                    : wants_check  ? Settings::Action::check
                                   : Settings::Action::serve;
  return std::optional<Settings>(std::move(settings));
}

}  // namespace glmd
