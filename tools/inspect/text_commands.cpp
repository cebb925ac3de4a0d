#include "tools/inspect/text_commands.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/file.h"
#include "platform/json.h"
#include "platform/standard_streams.h"
#include "text/chat_input.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace glmd {
namespace {

struct TextOptions {
  std::string path;
  bool by_lines = false;
  bool as_ids = false;
  bool untrusted = false;
  bool as_reference = false;
};

using Transform = std::function<Result<std::string>(std::string_view)>;

// After the last read: whether that was the end, or a failure that looks like it.
Result<void> check_standard_input() {
  if (std::ferror(stdin) == 0) return {};
  return error(ErrorKind::io, "standard input: read: {}",
               errno != 0 ? std::strerror(errno) : "a read failed");
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

int report(const Error& failure) {
  std::fprintf(stderr, "glmd-inspect: %s\n", failure.message.c_str());
  return exit_code(failure.kind);
}

// The whole input at once, or with --lines one line out for each line in. A line that fails becomes
// an object with its error, so that the lines still correspond; the exit code is the last
// failure's.
int run(const TextOptions& options, const Transform& transform) {
  if (!options.by_lines) {
    const Result<std::string> input = read_standard_input(INT64_MAX);
    if (!input.ok()) return report(input.error());
    const Result<std::string> output = transform(input.value());
    if (!output.ok()) return report(output.error());
    print(output.value());
    return 0;
  }
  int code = 0;
  errno = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const Result<std::string> output = transform(line);
    if (output.ok()) {
      print(output.value() + "\n");
    } else {
      const Json failure = Json::object({{"error", Json::string(output.error().message)}});
      print(failure.to_string() + "\n");
      code = exit_code(output.error().kind);
    }
  }
  const Result<void> finished = check_standard_input();
  if (!finished.ok()) return report(finished.error());
  return code;
}

// A container's folder, a checkpoint's, or the file itself.
Result<Tokenizer> open_tokenizer(const std::string& path) {
  struct stat status {};
  const bool is_folder = stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return Tokenizer::open(is_folder ? path + "/tokenizer.json" : path);
}

std::string ids_to_json(const std::vector<int32_t>& ids) {
  std::vector<Json> items;
  for (const int32_t id : ids) items.push_back(Json::integer(id));
  return Json::array(std::move(items)).to_string();
}

Result<std::vector<int32_t>> ids_from_json(std::string_view text) {
  const Json list = TRY(parse_json(text, "standard input"));
  if (!list.is_array()) return error(ErrorKind::bad_input, "standard input: not an array of ids");
  std::vector<int32_t> ids;
  for (const Json& item : list.items()) {
    if (!item.is_integer() || item.as_integer() < 0 ||
        item.as_integer() > std::numeric_limits<int32_t>::max()) {
      return error(ErrorKind::bad_input, "standard input: {} is not an id", item.to_string());
    }
    ids.push_back(static_cast<int32_t>(item.as_integer()));
  }
  return ids;
}

std::string to_json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

int tokenize_command(const TextOptions& options) {
  const Result<Tokenizer> tokenizer = open_tokenizer(options.path);
  if (!tokenizer.ok()) return report(tokenizer.error());
  const Recognise recognise = options.untrusted ? Recognise::nothing : Recognise::added_tokens;
  return run(options, [&](std::string_view input) -> Result<std::string> {
    if (!options.by_lines) return ids_to_json(tokenizer.value().encode(input, recognise)) + "\n";
    const Json text = TRY(parse_json(input, "standard input"));
    if (!text.is_string()) return error(ErrorKind::bad_input, "standard input: not a JSON string");
    return ids_to_json(tokenizer.value().encode(text.as_string(), recognise));
  });
}

int detokenize_command(const TextOptions& options) {
  const Result<Tokenizer> tokenizer = open_tokenizer(options.path);
  if (!tokenizer.ok()) return report(tokenizer.error());
  bool is_said = false;
  return run(options, [&](std::string_view input) -> Result<std::string> {
    const std::vector<int32_t> ids = TRY(ids_from_json(input));
    const auto strange = std::find_if(ids.begin(), ids.end(),
                                      [&](int32_t id) { return !tokenizer.value().has_token(id); });
    if (strange != ids.end() && !std::exchange(is_said, true)) {
      print_text(stderr, "glmd-inspect: id {}: no token has it; left out, as the reference does\n",
                 *strange);
    }
    const std::string text = tokenizer.value().decode(ids);
    return options.by_lines ? to_json_string(text) : text;
  });
}

int render_command(const TextOptions& options) {
  const Result<Tokenizer> tokenizer = open_tokenizer(options.path);
  if (!tokenizer.ok()) return report(tokenizer.error());
  return run(options, [&](std::string_view input) -> Result<std::string> {
    Json chat = TRY(parse_json(input, "standard input"));
    if (!options.as_reference) TRY(normalise_chat(chat));
    const std::vector<TextSpan> spans = TRY(render_chat(chat));
    if (options.as_ids) {
      const std::vector<int32_t> ids = options.as_reference ? tokenizer.value().encode(join(spans))
                                                            : tokenizer.value().encode(spans);
      return ids_to_json(ids) + (options.by_lines ? "" : "\n");
    }
    return options.by_lines ? to_json_string(join(spans)) : join(spans);
  });
}

CLI::App* add_command(CLI::App& app, const char* name, const char* description,
                      const std::shared_ptr<TextOptions>& options,
                      int (*command)(const TextOptions&), int& exit_code) {
  CLI::App* added = app.add_subcommand(name, description);
  added->add_option("path", options->path, "A model's folder, or a tokenizer.json")->required();
  added->add_flag("--lines", options->by_lines, "One JSON value a line, in and out");
  added->callback([options, command, &exit_code] { exit_code = command(*options); });
  return added;
}

}  // namespace

void add_text_commands(CLI::App& app, int& exit_code) {
  const auto tokenize = std::make_shared<TextOptions>();
  CLI::App* command = add_command(app, "tokenize", "Text on standard input to a JSON array of ids",
                                  tokenize, tokenize_command, exit_code);
  CLI::Option* untrusted = command->add_flag("--untrusted", tokenize->untrusted,
                                             "Take added tokens such as <|user|> for plain text");
  command
      ->add_flag("--reference", tokenize->as_reference,
                 "Recognise added tokens, as the reference does (the default)")
      ->excludes(untrusted);

  const auto detokenize = std::make_shared<TextOptions>();
  add_command(app, "detokenize", "A JSON array of ids on standard input to text", detokenize,
              detokenize_command, exit_code);

  const auto render = std::make_shared<TextOptions>();
  command = add_command(app, "render",
                        "An object with messages, tools and options on standard input to a prompt",
                        render, render_command, exit_code);
  command->add_flag("--ids", render->as_ids, "Print the prompt's ids instead of its text");
  command->add_flag(
      "--reference", render->as_reference,
      "The template alone: messages as they are; with --ids: added tokens in contents too");
}

}  // namespace glmd
