// glmd-eval: what a container's model computes, for whoever checks it.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "experts/routing_trace.h"
#include "model/families/families.h"
#include "platform/file.h"
#include "platform/json.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "tools/command_line.h"
#include "tools/eval/evaluation.h"
#include "tools/eval/evaluation_memory.h"

namespace glmd {
namespace {

constexpr int64_t text_bytes_max = int64_t{1} << 30;

struct Options {
  std::string model, ids, logits, draft_logits, ppl, questions, trace_routing;
  int64_t greedy = 0, step = 512;
  std::optional<int64_t> arena_bytes;
  int threads = 1;
  std::string kernels = "auto", kv_format = "f16";
};

// One for all runs; begun by the first.
using Trace = std::unique_ptr<RoutingTraceWriter>;

struct Loaded {
  Container container;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  int64_t step_rows = 0;
};

Result<std::vector<int32_t>> ids_of(const Json& json, std::string_view what) {
  if (!json.is_array()) return error(ErrorKind::bad_input, "{}: wanted an array of ids", what);
  std::vector<int32_t> ids;
  for (const Json& item : json.items()) {
    if (!item.is_integer() || item.as_integer() < 0 || item.as_integer() > INT32_MAX) {
      return error(ErrorKind::bad_input, "{}: wanted token ids, got {}", what, item.to_string());
    }
    ids.push_back(static_cast<int32_t>(item.as_integer()));
  }
  return ids;
}

std::string to_json(std::span<const int32_t> ids) {
  Json json = Json::array();
  for (const int32_t id : ids) json.items().push_back(Json::integer(id));
  return json.to_string();
}

Result<Loaded> load(const Options& options, int64_t context_tokens, Trace& trace) {
  Loaded loaded;
  loaded.container = TRY(Container::open(options.model));
  if (loaded.container.has_tokenizer()) {
    loaded.tokenizer = TRY(Tokenizer::open(options.model + "/tokenizer.json",
                                           loaded.container.checkpoint().vocabulary));
  }
  const KernelTable* kernels = find_kernels(options.kernels.c_str());
  if (kernels == nullptr) {
    return error(ErrorKind::usage, "--kernels {}: this processor cannot run it", options.kernels);
  }
  const bool with_draft = !options.draft_logits.empty();
  const KvFormat kv_format = *kv_format_from(options.kv_format);  // main saw to it
  std::vector<MemoryLimit> limits = TRY(machine_limits());
  const MemoryPlan plan = TRY(plan_evaluation(loaded.container, std::move(limits),
                                              {.context_tokens = context_tokens,
                                               .rows_max = options.step,
                                               .arena_bytes = options.arena_bytes,
                                               .threads = options.threads,
                                               .with_draft = with_draft,
                                               .kv_format = kv_format}));
  loaded.step_rows = plan.rows_max;
  std::vector<RoutingObserver*> observers;
  if (!options.trace_routing.empty() && !trace) {
    trace = TRY_CONTEXT(
        RoutingTraceWriter::create(options.trace_routing, routing_shape(loaded.container),
                                   [](const Error& cause) {
                                     std::fprintf(stderr, "glmd-eval: trace ends: %s\n",
                                                  cause.message.c_str());
                                   }),
        "--trace-routing");
  }
  if (trace) observers.push_back(trace.get());
  loaded.model = TRY(open_model(loaded.container, {.threads = options.threads,
                                                   .kernels = kernels,
                                                   .arena_bytes = plan.arena_bytes,
                                                   .kv_pool_bytes = plan.kv_bytes,
                                                   .kv_format = kv_format,
                                                   .rows_max = plan.rows_max,
                                                   .with_draft = with_draft,
                                                   .observers = std::move(observers)}));
  return loaded;
}

Result<void> append_row(File& file, std::span<const float> row) {
  return file.write({reinterpret_cast<const uint8_t*>(row.data()), row.size_bytes()});
}

Result<void> run_ids(const Options& options, Trace& trace) {
  const std::string text = TRY(read_input(options.ids, text_bytes_max));
  const Json json = TRY(parse_json(text, options.ids));
  const std::vector<int32_t> ids = TRY(ids_of(json, options.ids));
  std::optional<File> logits, draft;
  if (!options.logits.empty()) logits = TRY(File::create(options.logits));
  if (!options.draft_logits.empty()) draft = TRY(File::create(options.draft_logits));
  Loaded loaded = TRY(load(options, static_cast<int64_t>(ids.size()) + options.greedy, trace));
  if (logits || draft) {
    const RowSink sink = [&](std::span<const float> row) -> Result<void> {
      return logits ? append_row(*logits, row) : Result<void>();
    };
    const RowSink draft_sink = [&](std::span<const float> row) { return append_row(*draft, row); };
    TRY(forced_logits(*loaded.model, ids, loaded.step_rows, sink, draft ? &draft_sink : nullptr));
  }
  if (options.greedy > 0) {
    GreedyRule rule{.count = options.greedy, .is_allowed = {}, .is_stop = {}};
    if (loaded.tokenizer) {
      rule.is_allowed = [&](int32_t id) { return loaded.tokenizer->has_token(id); };
    }
    const std::vector<int32_t> next = TRY(greedy(*loaded.model, ids, loaded.step_rows, rule));
    std::printf("%s\n", to_json(next).c_str());
  }
  return {};
}

Result<void> check_utf8(std::string_view text, const std::string& path) {
  for (size_t index = 0; index < text.size();) {
    const DecodedCharacter character = decode_utf8(text, index);
    if (!character.is_valid)
      return error(ErrorKind::bad_input, "{}: at byte {}: not UTF-8 text", path, index);
    index += character.bytes;
  }
  return {};
}

Result<void> run_perplexity(const Options& options, Trace& trace) {
  constexpr int64_t window = 256, context = 64;
  const std::string text = TRY(read_input(options.ppl, text_bytes_max));
  TRY(check_utf8(text, options.ppl));
  Loaded loaded = TRY(load(options, window + context + 2, trace));
  if (!loaded.tokenizer) {
    return error(ErrorKind::bad_input, "{}: --ppl needs a tokenizer, this model has none",
                 options.model);
  }
  const std::vector<int32_t> ids = loaded.tokenizer->encode(text, Recognise::nothing);
  const std::vector<int32_t> prefix = loaded.tokenizer->encode("[gMASK]<sop>");
  const Perplexity result = TRY(perplexity(*loaded.model, ids, prefix, window, context));
  std::printf("{\"perplexity\":%.6f,\"scored_tokens\":%lld,\"tokens\":%zu}\n", result.value,
              static_cast<long long>(result.scored_tokens), ids.size());
  return {};
}

// One JSON object a line, as eval.jsonl has them: prompt_ids and answer_ids.
struct Question {
  std::vector<int32_t> prompt, answer;
  std::string kind;
};

Result<std::vector<Question>> read_questions(const std::string& path) {
  const std::string text = TRY(read_input(path, text_bytes_max));
  std::vector<Question> questions;
  size_t begin = 0;
  for (int64_t line = 1; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (content.empty()) continue;
    const std::string what = fmt::format("{}: line {}", path, line);
    const Json json = TRY(parse_json(content, what));
    const Json* prompt = json.find("prompt_ids");
    const Json* answer = json.find("answer_ids");
    const Json* kind = json.find("kind");
    if (prompt == nullptr || answer == nullptr) {
      return error(ErrorKind::bad_input, "{}: wanted prompt_ids and answer_ids", what);
    }
    questions.push_back({TRY(ids_of(*prompt, what)), TRY(ids_of(*answer, what)),
                         kind != nullptr && kind->is_string() ? kind->as_string() : ""});
  }
  return questions;
}

Result<void> run_questions(const Options& options, Trace& trace) {
  const std::vector<Question> questions = TRY(read_questions(options.questions));
  int64_t tokens_max = 0;
  for (const Question& question : questions) {
    tokens_max = std::max<int64_t>(tokens_max, question.prompt.size() + question.answer.size());
  }
  Loaded loaded = TRY(load(options, tokens_max, trace));
  const std::vector<int32_t>& stops = loaded.container.checkpoint().stop_tokens;
  int64_t exact = 0;
  Json failed = Json::array();
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    GreedyRule rule{.count = static_cast<int64_t>(question.answer.size()),
                    .is_allowed = {},
                    .is_stop = [&](int32_t id) {
                      return std::find(stops.begin(), stops.end(), id) != stops.end();
                    }};
    if (loaded.tokenizer) {
      rule.is_allowed = [&](int32_t id) { return loaded.tokenizer->has_token(id); };
    }
    const std::vector<int32_t> got =
        TRY(greedy(*loaded.model, question.prompt, loaded.step_rows, rule));
    if (got == question.answer) {
      ++exact;
      continue;
    }
    failed.items().push_back(Json::integer(static_cast<int64_t>(i)));
    std::fprintf(stderr, "item %zu (%s): wanted %s, got %s\n", i,
                 Json::string(question.kind).to_string().c_str(), to_json(question.answer).c_str(),
                 to_json(got).c_str());
  }
  Json summary = Json::object();
  const auto count = static_cast<int64_t>(questions.size());
  summary.set("questions", Json::integer(count));
  summary.set("exact", Json::integer(exact));
  summary.set("share",
              Json::real(count == 0 ? 0 : static_cast<double>(exact) / static_cast<double>(count)));
  summary.set("failed", std::move(failed));
  std::printf("%s\n", summary.to_string().c_str());
  return {};
}

// A device may be named twice.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (std::filesystem::exists(a, ignored)) {
    return std::filesystem::is_regular_file(a, ignored) &&
           std::filesystem::equivalent(a, b, ignored);
  }
  return std::filesystem::absolute(a, ignored).lexically_normal() ==
         std::filesystem::absolute(b, ignored).lexically_normal();
}

// Nothing is written into the model's folder, or into a file of it by another name.
Result<void> check_outside(const char* option, const std::string& path, const std::string& model) {
  const Result<std::vector<std::string>> names = list_directory(model);
  if (!names.ok()) return {};  // whoever opens the model says so
  std::error_code ignored;
  bool is_model = std::filesystem::equivalent(parent_folder(path), model, ignored);
  for (const std::string& name : names.value())
    is_model = is_model || is_same_file(path, model + "/" + name);
  if (!is_model) return {};
  return error(ErrorKind::usage, "{} {}: wanted a file outside of --model {}", option, path, model);
}

// What is written may be neither what is read nor what is written beside it.
Result<void> check_files(const Options& options) {
  struct Named {
    const char* option;
    std::string path;
    bool is_output;
  };
  const std::string& trace = options.trace_routing;
  const Named files[] = {{"--ids", options.ids, false},
                         {"--ppl", options.ppl, false},
                         {"--questions", options.questions, false},
                         {"--logits", options.logits, true},
                         {"--draft-logits", options.draft_logits, true},
                         {"--trace-routing", trace, true},
                         {"--trace-routing", trace.empty() ? "" : kept_trace_path(trace), true}};
  for (const Named& output : files) {
    if (!output.is_output || output.path.empty()) continue;
    TRY(check_outside(output.option, output.path, options.model));
    for (const Named& other : files) {
      if (&other == &output || other.path.empty()) continue;
      if (is_same_file(output.path, other.path))
        return error(ErrorKind::usage, "{} {}: wanted a file of its own, got that of {}",
                     output.option, output.path, other.option);
    }
  }
  return {};
}

Result<void> run(const Options& options) {
  TRY(check_files(options));
  Trace trace;
  if (!options.ids.empty()) {
    if (options.logits.empty() && options.draft_logits.empty() && options.greedy == 0) {
      return error(ErrorKind::usage, "--ids needs --logits, --draft-logits or --greedy");
    }
    TRY(run_ids(options, trace));
  }
  if (!options.ppl.empty()) TRY(run_perplexity(options, trace));
  if (!options.questions.empty()) TRY(run_questions(options, trace));
  if (options.ids.empty() && options.ppl.empty() && options.questions.empty()) {
    return error(ErrorKind::usage, "nothing to do: give --ids, --ppl or --questions");
  }
  return {};
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  glmd::begin_program("glmd-eval");
  glmd::Options options;
  CLI::App app("Evaluates the model of a container.", "glmd-eval");
  app.set_version_flag("--version", "glmd-eval " GLMD_VERSION);
  app.add_option("--model", options.model, "container folder")->required();
  app.add_option("--ids", options.ids, "file with a JSON array of token ids");
  app.add_option("--logits", options.logits,
                 "write teacher-forced logits: little-endian float32 [positions, vocabulary]");
  app.add_option("--draft-logits", options.draft_logits,
                 "the same of the draft layer: [positions - 1, vocabulary]");
  app.add_option("--greedy", options.greedy, "print the N ids that follow, as a JSON array")
      ->transform(glmd::within(int64_t{1}, int64_t{1} << 24));
  app.add_option("--ppl", options.ppl, "perplexity of a text file");
  app.add_option("--questions", options.questions,
                 "share of exact answers of a JSON-lines file with prompt_ids and answer_ids");
  app.add_option("--trace-routing", options.trace_routing,
                 "write which experts every token goes to, for glmd-replay");
  app.add_option("--threads", options.threads, "threads that do arithmetic (default 1)")
      ->transform(glmd::within(1, 1024));
  app.add_option("--kernels", options.kernels, "which kernels (default: the fastest)")
      ->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512"}));
  app.add_option("--kv-format", options.kv_format, "keys of attention: f16 or int8")
      ->check(CLI::IsMember({"f16", "int8"}));
  app.add_option("--arena", options.arena_bytes,
                 "bytes for experts in memory, e.g. 8G (default: all that have room)")
      ->transform(glmd::byte_size(1));
  app.add_option("--step", options.step, "rows per forward pass, at most; 1 is one by one")
      ->transform(glmd::within(int64_t{1}, int64_t{1} << 20));
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  return glmd::end_program(app, glmd::run(options));
}
