#include "bench_stream.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "experts/synthetic_routing.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "model/families.h"
#include "platform/clock.h"
#include "storage/reader_choice.h"

namespace glmd {
namespace {

struct Options {
  std::string model;
  std::vector<double> cached = {0.1, 0.5};
  int64_t tokens = 256;
  int64_t warm_up = 64;
  LookAhead look_ahead = LookAhead::automatic;
  ReaderKind reader = ReaderKind::automatic;
  double recall = 0.767;
  int threads = 2;
  bool with_serial = false;
  bool as_json = false;
};

constexpr int64_t text_tokens = 64;    // then another prompt begins
constexpr int64_t prompt_tokens = 8;   // of these, read at once; the others are decoded
constexpr int64_t resident_share = 2;  // times the experts of a token, all in memory
constexpr int64_t disk_bytes_max = int64_t{4} << 30;

// What the bench needs to know of a model.
struct Slice {
  int64_t experts = 0, chosen = 0;
  std::vector<int64_t> layers;         // that have experts
  std::vector<const Tensor*> tensors;  // of these, layer by layer
  int64_t bytes = 0;                   // of all experts

  double token_experts() const { return static_cast<double>(std::ssize(layers) * chosen); }
  int64_t expert_bytes() const { return bytes / std::ssize(tensors); }
};

Result<Slice> slice_of(const Container& container) {
  const CheckpointConfig& config = container.checkpoint();
  Slice slice;
  slice.experts = config.n_routed_experts;
  slice.chosen = config.experts_per_token;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_sparse[layer]) continue;
    slice.layers.push_back(layer);
    for (int64_t expert = 0; expert < slice.experts; ++expert) {
      slice.tensors.push_back(container.find(fmt::format("layers.{}.experts.{}", layer, expert)));
      slice.bytes += slice.tensors.back()->bytes;
    }
  }
  if (slice.layers.empty()) {
    return error(ErrorKind::bad_input, "{}: wanted layers with experts, got none",
                 container.folder());
  }
  return slice;
}

// Choices and guesses of every token of the run, made before it: weights are random and would not
// route like trained ones. Token `i` of the run is position i % text_tokens of its text.
class RoutingTable : public RoutingSource {
 public:
  RoutingTable(const Slice& slice, int64_t tokens, double recall) : slice_(slice) {
    SyntheticRouting routing({.layers = std::ssize(slice.layers),
                              .experts = slice.experts,
                              .chosen = slice.chosen,
                              .text_tokens = text_tokens,
                              .guess_recall = recall});
    for (int64_t token = 0; token < tokens; ++token) {
      routing.next_token();
      for (int64_t layer = 0; layer < std::ssize(slice.layers); ++layer) {
        for (const int32_t expert : routing.chosen(layer)) chosen_.push_back(expert);
        for (const int32_t expert : routing.guesses(layer)) guesses_.push_back(expert);
      }
    }
  }
  // Every token goes to experts that stay in memory; none is guessed.
  explicit RoutingTable(const Slice& slice) : slice_(slice), is_resident_(true) {}

  void begin_text(int64_t first_token) { first_token_ = first_token; }

  // Experts of all layers, numbered layer by layer.
  std::vector<int32_t> experts_of(int64_t token, int64_t layer_index) const {
    std::vector<int32_t> experts;
    for (int64_t rank = 0; rank < slice_.chosen; ++rank) {
      experts.push_back(static_cast<int32_t>(layer_index * slice_.experts) +
                        chosen_[index_of(token, layer_index) + rank]);
    }
    return experts;
  }

  void choose(int64_t layer, int64_t position, std::span<Choice> choices) override {
    fill(chosen_, layer, position, choices);
  }
  void guess(int64_t layer, int64_t position, std::span<Choice> choices) override {
    fill(guesses_, layer, position, choices);
  }

 private:
  int64_t index_of(int64_t token, int64_t layer_index) const {
    return (token * std::ssize(slice_.layers) + layer_index) * slice_.chosen;
  }
  void fill(const std::vector<int32_t>& experts, int64_t layer, int64_t position,
            std::span<Choice> choices) const {
    const int64_t layer_index =
        std::find(slice_.layers.begin(), slice_.layers.end(), layer) - slice_.layers.begin();
    for (int64_t rank = 0; rank < slice_.chosen; ++rank) {
      choices[rank].expert = is_resident_
                                 ? static_cast<int32_t>((position * slice_.chosen + rank) %
                                                        (resident_share * slice_.chosen))
                                 : experts[index_of(first_token_ + position, layer_index) + rank];
    }
  }

  const Slice& slice_;
  bool is_resident_ = false;
  int64_t first_token_ = 0;
  std::vector<int32_t> chosen_, guesses_;  // [tokens][layers][chosen]
};

struct Run {
  std::vector<double> seconds;  // of each decoded token
  ExpertCacheStats stats;       // of these tokens
  double per_token() const {
    return std::accumulate(seconds.begin(), seconds.end(), 0.0) /
           static_cast<double>(seconds.size());
  }
};

ExpertCacheStats operator-(const ExpertCacheStats& a, const ExpertCacheStats& b) {
  return {.hits = a.hits - b.hits,
          .misses = a.misses - b.misses,
          .read_bytes = a.read_bytes - b.read_bytes,
          .rereads = a.rereads - b.rereads,
          .ahead_issued = a.ahead_issued - b.ahead_issued,
          .ahead_used = a.ahead_used - b.ahead_used,
          .ahead_late = a.ahead_late - b.ahead_late,
          .ahead_wasted = a.ahead_wasted - b.ahead_wasted,
          .ahead_dropped = a.ahead_dropped - b.ahead_dropped,
          .wait_seconds = a.wait_seconds - b.wait_seconds,
          .read_seconds = a.read_seconds - b.read_seconds};
}
ExpertCacheStats& operator+=(ExpertCacheStats& a, const ExpertCacheStats& b) {
  a = a - (ExpertCacheStats{} - b);
  return a;
}

// Runs the texts of the table; what follows `warm_up` tokens is measured.
Result<Run> run_texts(Model& model, RoutingTable& routing, int64_t warm_up, int64_t tokens) {
  const SteadyClock clock;
  Run run;
  for (int64_t first = 0; std::ssize(run.seconds) < tokens; first += text_tokens) {
    routing.begin_text(first);
    const std::unique_ptr<SequenceState> sequence = TRY(model.new_sequence(text_tokens));
    for (int64_t position = 0; position < text_tokens && std::ssize(run.seconds) < tokens;) {
      const int64_t rows = position == 0 ? prompt_tokens : 1;
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < rows; ++i) {
        ids.push_back(static_cast<int32_t>((first + position + i) * 31 % model.shape().vocabulary));
      }
      const ExpertCacheStats before = model.expert_stats();
      const int64_t begin_ns = clock.now_ns();
      const BatchPart part{.sequence = sequence.get(), .tokens = ids, .wants_logits = true};
      const PassPtr pass = TRY(model.begin({&part, 1}));
      while (!pass->is_done()) TRY(pass->run_layer());
      pass->commit();
      position += rows;
      if (first + position <= warm_up || rows > 1) continue;
      run.seconds.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-9);
      run.stats += model.expert_stats() - before;
    }
  }
  return run;
}

Result<std::unique_ptr<Model>> open_slice(const Container& container, const Options& options,
                                          int64_t arena_bytes, RoutingTable& routing) {
  const ModelSizes sizes = TRY(model_sizes(container, false));
  ModelOptions model;
  model.threads = options.threads;
  model.kernels = find_kernels("auto");
  model.arena_bytes = std::max(arena_bytes, sizes.arena_bytes_min);
  model.kv_pool_bytes = 2 * (text_tokens + cache_block_tokens) * sizes.kv_bytes_per_token;
  model.verify = Verify::off;  // as when every expert was read before
  model.look_ahead = options.look_ahead;
  model.routing = &routing;
  model.reader.kind = options.reader;
  return open_model(container, model);
}

// The same steps with every expert in memory: what arithmetic and memory allow.
Result<double> compute_seconds(const Container& container, const Slice& slice,
                               const Options& options) {
  RoutingTable routing(slice);
  const int64_t arena_bytes =
      2 * resident_share * slice.chosen * std::ssize(slice.layers) * slice.expert_bytes();
  const std::unique_ptr<Model> model = TRY(open_slice(container, options, arena_bytes, routing));
  const Run run = TRY(run_texts(*model, routing, text_tokens, text_tokens));
  if (run.stats.misses > 0) {
    return error(ErrorKind::internal, "wanted every expert in memory, got {} misses",
                 run.stats.misses);
  }
  return median(run.seconds);
}

// The disk alone, driven through a cache of the same size with the same routing.
struct DiskAlone {
  double bytes_per_second = 0;   // as many reads under way as the reader likes
  double seconds_per_token = 0;  // layer after layer, each waited for
};

Result<DiskAlone> measure_disk(const Container& container, const Slice& slice,
                               const Options& options, int64_t arena_bytes,
                               const RoutingTable& routing) {
  const SteadyClock clock;
  std::vector<ExpertExtent> extents;
  for (const Tensor* tensor : slice.tensors) {
    extents.push_back({.file = tensor->file,
                       .offset = tensor->offset,
                       .bytes = tensor->bytes,
                       .name = tensor->name,
                       .file_name = container.files()[tensor->file]});
  }
  const OpenedReader opened = TRY(open_block_reader(container.files(), {.kind = options.reader}));
  ExpertCache cache =
      TRY(ExpertCache::create(std::move(extents), arena_bytes, *opened.reader, Verify::off));
  cache.allow_read_ahead(options.look_ahead != LookAhead::off);
  std::vector<const Tensor*> missed;
  double seconds = 0;
  int64_t missed_bytes = 0, token = 0, counted = 0;
  for (; token < options.warm_up + options.tokens && missed_bytes < disk_bytes_max; ++token) {
    cache.advance(1);
    const bool is_counted = token >= options.warm_up;
    counted += is_counted;
    for (int64_t layer = 0; layer < std::ssize(slice.layers); ++layer) {
      std::vector<ExpertWant> wants;
      for (const int32_t expert : routing.experts_of(token, layer)) wants.push_back({expert, 1, 1});
      const int64_t begin_ns = clock.now_ns();
      cache.begin_step(
          {static_cast<int32_t>(layer * slice.experts), static_cast<int32_t>(slice.experts)},
          wants);
      for (const ExpertWant& want : wants) {
        if (cache.find(want.expert)) continue;
        while (!cache.start_load(want.expert)) TRY(cache.wait_for_arrival().lease);
        if (!is_counted) continue;
        missed.push_back(slice.tensors[want.expert]);
        missed_bytes += missed.back()->bytes;
      }
      while (cache.loading_count() > 0) TRY(cache.wait_for_arrival().lease);
      if (is_counted) seconds += static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
    }
  }

  // The same experts once more, without waiting between layers.
  AlignedMemory targets = TRY(AlignedMemory::allocate(16 * slice.expert_bytes()));
  const int64_t begin_ns = clock.now_ns();
  for (size_t begun = 0, ended = 0; ended < missed.size();) {
    if (begun < missed.size() && begun - ended < 16) {
      opened.reader->submit({.file = missed[begun]->file,
                             .offset = missed[begun]->offset,
                             .bytes = missed[begun]->bytes,
                             .target = targets.data() + begun % 16 * slice.expert_bytes(),
                             .tag = begun});
      ++begun;
      continue;
    }
    TRY(opened.reader->wait().result);
    ++ended;
  }
  return DiskAlone{
      .bytes_per_second = static_cast<double>(missed_bytes) /
                          (static_cast<double>(clock.now_ns() - begin_ns) * 1e-9),
      .seconds_per_token = seconds / static_cast<double>(std::max<int64_t>(1, counted))};
}

Result<void> bench_share(const Container& container, const Slice& slice, const Options& options,
                         double cached, double compute) {
  const auto arena_bytes = static_cast<int64_t>(cached * static_cast<double>(slice.bytes));
  RoutingTable routing(slice, options.warm_up + 2 * options.tokens + 2 * text_tokens,
                       options.recall);
  Run run;
  {
    const std::unique_ptr<Model> model = TRY(open_slice(container, options, arena_bytes, routing));
    run = TRY(run_texts(*model, routing, options.warm_up, options.tokens));
  }
  const DiskAlone disk = TRY(measure_disk(container, slice, options, arena_bytes, routing));

  const ExpertCacheStats& stats = run.stats;
  const auto per_token = [&](double value) {
    return value / static_cast<double>(run.seconds.size());
  };
  // What had to be read, by whomever: a used guess is a miss that came early.
  const double needed_bytes =
      per_token(static_cast<double>((stats.misses + stats.ahead_used) * slice.expert_bytes()));
  const double disk_seconds = needed_bytes / disk.bytes_per_second;
  const double bound = 1 / std::max(disk_seconds, compute);

  Measurement m = {.bench = "stream",
                   .varied = {{"cached", cached},
                              {"look_ahead", options.look_ahead == LookAhead::on    ? "on"
                                             : options.look_ahead == LookAhead::off ? "off"
                                                                                    : "auto"},
                              {"threads", int64_t{options.threads}}},
                   .part = "",
                   .unit = "",
                   .bound = {}};
  const auto say = [&](const std::string& part, double value, const std::string& unit,
                       std::optional<double> of = std::nullopt) {
    m.part = part;
    m.value = value;
    m.unit = unit;
    m.bound = of;
    report(m, options.as_json);
  };
  say("disk", disk.bytes_per_second * 1e-9, "GB/s");
  say("disk_alone", 1 / disk_seconds, "tok/s");
  say("compute", 1 / compute, "tok/s");
  say("needed", needed_bytes * 1e-9, "GB/tok");
  say("read", per_token(static_cast<double>(stats.read_bytes)) * 1e-9, "GB/tok");
  say("hits", per_token(static_cast<double>(stats.hits - stats.ahead_used)), "1/tok",
      slice.token_experts());
  say("ahead_issued", per_token(static_cast<double>(stats.ahead_issued)), "1/tok");
  say("ahead_used", per_token(static_cast<double>(stats.ahead_used)), "1/tok");
  say("ahead_late", per_token(static_cast<double>(stats.ahead_late)), "1/tok");
  say("ahead_wasted", per_token(static_cast<double>(stats.ahead_wasted)), "1/tok");
  say("median", 1 / median(run.seconds), "tok/s", bound);
  say("waited", per_token(stats.wait_seconds) * 1e3, "ms/tok");
  if (options.with_serial) {
    const double serial = 1 / (compute + disk.seconds_per_token);
    say("serial", serial, "tok/s");
    say("over_serial", 1 / run.per_token() / serial, "x");
  }
  say("total", 1 / run.per_token(), "tok/s", bound);
  return {};
}

Result<void> run(const Options& options) {
  const Container container = TRY(Container::open(options.model));
  const Slice slice = TRY(slice_of(container));
  const double compute = TRY(compute_seconds(container, slice, options));
  for (const double cached : options.cached) {
    TRY(bench_share(container, slice, options, cached, compute));
  }
  return {};
}

}  // namespace

BenchCommand add_stream_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "stream",
      "tokens per second while experts come from disk, and the bound that disk, memory "
      "and arithmetic set; routing is made up");
  app->add_option("--model", options->model, "container, far larger than the share kept")
      ->required();
  app->add_option("--cached", options->cached, "shares of the experts that fit in memory")
      ->check(CLI::Range(0.001, 1.0))
      ->delimiter(',');
  app->add_option("--tokens", options->tokens, "measured tokens; every 64 another prompt begins")
      ->check(CLI::Range(1, 1000000));
  app->add_option("--warm-up", options->warm_up, "tokens before these")
      ->check(CLI::Range(0, 1000000));
  app->add_option("--look-ahead", options->look_ahead, "reads ahead of the router: on, off, auto")
      ->transform(CLI::CheckedTransformer(std::map<std::string, LookAhead>{
          {"on", LookAhead::on}, {"off", LookAhead::off}, {"auto", LookAhead::automatic}}));
  app->add_option("--reader", options->reader, "auto, io_uring, threads")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ReaderKind>{{"auto", ReaderKind::automatic},
                                            {"io_uring", ReaderKind::io_uring},
                                            {"threads", ReaderKind::threads}}));
  app->add_option("--recall", options->recall,
                  "share of a layer's experts guessed one layer before")
      ->check(CLI::Range(0.6, 0.88));
  app->add_option("--threads", options->threads, "threads of the team")->check(CLI::Range(1, 1024));
  app->add_flag("--serial", options->with_serial,
                "also: each layer's reads alone and the arithmetic alone, one after the other");
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
