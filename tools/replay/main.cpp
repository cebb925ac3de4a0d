// glmd-replay: how often experts are found in memory, and what is read, for caches of any size and
// policy.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "platform/counted.h"
#include "platform/json.h"
#include "storage/container.h"
#include "tools/command_line.h"
#include "tools/replay/cache_replay.h"

namespace glmd {
namespace {

struct Options {
  std::string trace;
  bool is_synthetic = false;
  SyntheticRoutingOptions synthetic;
  int64_t tokens = 1000;
  std::optional<int64_t> warm_up_tokens;  // unset: a quarter
  std::vector<std::string> policies = {"glmd", "lru", "lfu", "belady"};
  std::vector<int64_t> slots;  // none: slots_of() chooses
  bool is_per_layer = false, as_json = false;
};

struct Row {
  std::string policy;
  int64_t slots_per_layer = 0;
  double share = 0;  // of all experts
  double hit_rate = 0;
  double bytes_per_token = 0;
};

// GLM-5.2's experts at 4.25 bits.
int64_t synthetic_expert_bytes() {
  return expert_bytes(BlockFormat::nl4, 2048, 6144);
}

Result<ReplayTrace> make_up(const Options& options) {
  const SyntheticRoutingOptions& synthetic = options.synthetic;
  const int64_t uses = options.tokens * synthetic.layers * synthetic.chosen;
  if (uses > ReplayTrace::uses_max) {
    return error(ErrorKind::usage, "--tokens x --layers x {}: wanted at most {}, got {}",
                 synthetic.chosen, ReplayTrace::uses_max, uses);
  }
  return synthetic_trace(synthetic, options.tokens,
                         options.warm_up_tokens.value_or(options.tokens / 4),
                         synthetic_expert_bytes());
}

Result<ReplayTrace> load(const Options& options) {
  if (options.is_synthetic) return make_up(options);
  RoutingTraceReader reader = TRY(RoutingTraceReader::open(options.trace));
  ReplayTrace trace = TRY(recorded_trace(reader, options.warm_up_tokens));
  if (reader.is_cut()) {
    std::fprintf(stderr, "glmd-replay: %s: the last record is incomplete and left out\n",
                 options.trace.c_str());
  }
  return trace;
}

Row measure(const ReplayTrace& trace, const std::vector<ReplayTrace>& layers,
            const std::string& name, const ReplayPolicy& policy, int64_t slots_per_layer) {
  ReplayTotals totals;
  if (layers.empty()) {
    totals = replay(trace, policy, slots_per_layer * trace.layer_count());
  }
  for (const ReplayTrace& layer : layers) {
    const ReplayTotals part = replay(layer, policy, slots_per_layer);
    totals.wanted += part.wanted;
    totals.hits += part.hits;
    totals.read_bytes += part.read_bytes;
  }
  return {
      .policy = name,
      .slots_per_layer = slots_per_layer,
      .share = static_cast<double>(slots_per_layer) / static_cast<double>(trace.experts_per_layer),
      .hit_rate = totals.hit_rate(),
      .bytes_per_token =
          static_cast<double>(totals.read_bytes) / static_cast<double>(trace.counted_tokens)};
}

void print_json(const Row& row, const ReplayTrace& trace) {
  Json line = Json::object();
  line.set("bench", Json::string("replay"));
  line.set("policy", Json::string(row.policy));
  line.set("slots_per_layer", Json::integer(row.slots_per_layer));
  line.set("share", Json::real(row.share));
  line.set("layers", Json::integer(trace.layer_count()));
  line.set("tokens", Json::integer(trace.counted_tokens));
  line.set("hit_rate", Json::real(row.hit_rate));
  line.set("bytes_per_token", Json::real(row.bytes_per_token));
  std::printf("%s\n", line.to_string().c_str());
  std::fflush(stdout);
}

void print_heading(const Options& options, const ReplayTrace& trace) {
  print_text(stdout, "{} of {}, {} after the warm-up\n", counted(trace.layer_count(), "layer"),
             counted(trace.experts_per_layer, "expert"), counted(trace.counted_tokens, "token"));
  std::printf("slots  share");
  for (const std::string& policy : options.policies) std::printf("  %18s", policy.c_str());
  std::printf("\n");
}

void print_row(const std::vector<Row>& rows) {
  std::printf("%5lld %5.1f%%", static_cast<long long>(rows[0].slots_per_layer),
              100 * rows[0].share);
  for (const Row& row : rows) {
    std::printf("  %5.1f%% %8.3f MB", 100 * row.hit_rate, row.bytes_per_token / 1e6);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Those asked for, which must fit the model; otherwise sizes up to all of its experts.
Result<std::vector<int64_t>> slots_of(const Options& options, int64_t experts_per_layer) {
  for (const int64_t slots : options.slots) {
    if (slots > experts_per_layer)
      return error(ErrorKind::usage, "--slots: wanted 1 to {}, got {}", experts_per_layer, slots);
  }
  if (!options.slots.empty()) return options.slots;
  std::vector<int64_t> sizes;
  for (const int64_t size : {4, 8, 12, 16, 26, 40, 64, 96, 128, 192}) {
    if (size < experts_per_layer) sizes.push_back(size);
  }
  if (experts_per_layer <= 192) sizes.push_back(experts_per_layer);
  return sizes;
}

Result<void> run(const Options& options) {
  if (options.trace.empty() && !options.is_synthetic)
    return error(ErrorKind::usage, "nothing to replay: give a trace or --synthetic");
  std::vector<ReplayPolicy> policies;
  for (const std::string& name : options.policies) policies.push_back(TRY(parse_policy(name)));
  const ReplayTrace trace = TRY(load(options));
  if (trace.counted_tokens == 0) {
    return error(ErrorKind::bad_input, "nothing to count: wanted tokens after the warm-up, got 0");
  }
  const std::vector<int64_t> sizes = TRY(slots_of(options, trace.experts_per_layer));
  std::vector<ReplayTrace> layers;
  if (options.is_per_layer) layers = split_by_layer(trace);
  if (!options.as_json) print_heading(options, trace);
  for (const int64_t slots : sizes) {
    std::vector<Row> rows;
    for (size_t i = 0; i < policies.size(); ++i) {
      rows.push_back(measure(trace, layers, options.policies[i], policies[i], slots));
      if (options.as_json) print_json(rows.back(), trace);
    }
    if (!options.as_json) print_row(rows);
  }
  return {};
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  glmd::begin_program("glmd-replay");
  glmd::Options options;
  CLI::App app("Replays routing choices through caches of any size and policy.", "glmd-replay");
  app.set_version_flag("--version", "glmd-replay " GLMD_VERSION);
  auto* trace = app.add_option("trace", options.trace, "file written by --trace-routing");
  auto* synthetic = app.add_flag("--synthetic", options.is_synthetic,
                                 "made-up routing with the statistics of GLM-5.2 instead");
  trace->excludes(synthetic);
  app.add_option("--policies", options.policies,
                 "glmd, lru, lfu, belady, decay:TOKENS (default: the first four)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--slots", options.slots, "sizes: experts in memory for each layer")
      ->transform(glmd::within(int64_t{1}, int64_t{1} << 20))
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--warm-up", options.warm_up_tokens,
                 "tokens that are not counted (default: a quarter)")
      ->transform(glmd::within(int64_t{0}, int64_t{1} << 40));
  app.add_flag("--per-layer", options.is_per_layer,
               "each layer has its own slots instead of sharing all");
  app.add_flag("--json", options.as_json, "one object a line");
  app.add_option("--tokens", options.tokens, "synthetic: tokens in all")
      ->transform(glmd::within(int64_t{1}, int64_t{1} << 20))
      ->needs(synthetic);
  app.add_option("--layers", options.synthetic.layers, "synthetic: layers with experts")
      ->transform(glmd::within(int64_t{1}, int64_t{1024}))
      ->needs(synthetic);
  app.add_option("--text-tokens", options.synthetic.text_tokens,
                 "synthetic: another text after so many tokens; 0: never")
      ->transform(glmd::within(int64_t{0}, int64_t{1} << 40))
      ->needs(synthetic);
  app.add_option("--seed", options.synthetic.text_seed, "synthetic: another text")
      ->transform(glmd::within(uint64_t{0}, UINT64_MAX))
      ->needs(synthetic);
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  return glmd::end_program(app, glmd::run(options));
}
