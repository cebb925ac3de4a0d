#include "bench_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "bench_memory.h"
#include "experts/synthetic_routing.h"
#include "experts/usage_history.h"
#include "instant_reader.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "model/families.h"
#include "platform/clock.h"
#include "progress.h"
#include "storage/reader_choice.h"
#include "stream_bound.h"
#include "tools/command_line.h"

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

constexpr int64_t text_tokens = 64;      // then another prompt begins
constexpr int64_t prompt_tokens = 8;     // of these, read at once; the others are decoded
constexpr double piece_seconds = 1;      // then disk and arithmetic are measured alone
constexpr double slice_seconds = 0.5;    // of each of these measurements
constexpr int64_t reads_under_way = 16;  // experts: more segments than a reader begins

// What the bench needs to know of a model.
struct Slice {
  int64_t experts = 0, chosen = 0;
  std::vector<int64_t> layers;         // that have experts
  std::vector<const Tensor*> tensors;  // of these, layer by layer
  int64_t bytes = 0;                   // of all experts

  double token_experts() const { return static_cast<double>(std::ssize(layers) * chosen); }
  int64_t expert_bytes() const { return bytes / std::ssize(tensors); }
  // By which an arena is filled before the run, alike in all layers, so that none of its slots is
  // touched for the first time while it is measured; worth so little that the run decides what
  // stays.
  std::vector<float> usage_prior() const {
    std::vector<float> uses(tensors.size());
    for (size_t i = 0; i < uses.size(); ++i) {
      const int64_t rank = static_cast<int64_t>(i) % experts;
      uses[i] = 0.01F / static_cast<float>(rank + 1);
    }
    return uses;
  }
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
  // Every token goes to the same experts, which stay in memory.
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
                                 ? static_cast<int32_t>(rank)
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
  double head_seconds = 0;      // of these, the output head
  double total_seconds() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
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

// The texts of a table, one after the other, in pieces.
class TextRun {
 public:
  TextRun(Model& model, RoutingTable& routing) : model_(model), routing_(routing) {}

  // Decodes so many tokens more, or fewer once `seconds_max` have passed; prompts in between are
  // read and not counted.
  Result<Run> decode(int64_t tokens, double seconds_max = 1e9) {
    const SteadyClock clock;
    Run run;
    while (std::ssize(run.seconds) < tokens && run.total_seconds() < seconds_max) {
      if (position_ == 0) {
        routing_.begin_text(first_);
        sequence_ = TRY(model_.new_sequence(text_tokens));
        TRY(step(prompt_tokens));
        continue;
      }
      const ExpertCacheStats before = model_.expert_stats();
      const double head_seconds = model_.head_seconds();
      const int64_t begin_ns = clock.now_ns();
      TRY(step(1));
      run.seconds.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-9);
      run.head_seconds += model_.head_seconds() - head_seconds;
      run.stats += model_.expert_stats() - before;
    }
    return run;
  }

 private:
  Result<void> step(int64_t rows) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows; ++i) {
      ids.push_back(
          static_cast<int32_t>((first_ + position_ + i) * 31 % model_.shape().vocabulary));
    }
    const BatchPart part{.sequence = sequence_.get(), .tokens = ids, .wants_logits = true};
    const PassPtr pass = TRY(model_.begin({&part, 1}));
    while (!pass->is_done()) TRY(pass->run_layer());
    pass->commit();
    position_ += rows;
    if (position_ < text_tokens) return {};
    position_ = 0;
    first_ += text_tokens;
    return {};
  }

  Model& model_;
  RoutingTable& routing_;
  std::unique_ptr<SequenceState> sequence_;
  int64_t first_ = 0, position_ = 0;  // of the text, in it
};

constexpr int64_t kv_pool_tokens = 2 * (text_tokens + cache_block_tokens);

int64_t arena_bytes_of(const Slice& slice, const ModelSizes& sizes, double cached) {
  const auto bytes = static_cast<int64_t>(cached * static_cast<double>(slice.bytes));
  return std::max(bytes, sizes.arena_bytes_min);
}

// Of the model that has every expert of its one routing in memory.
int64_t resident_arena_bytes(const Slice& slice, const ModelSizes& sizes) {
  const auto experts = static_cast<int64_t>(slice.token_experts());
  const int64_t bytes = (experts + experts / 4) * slice.expert_bytes();
  return std::clamp(bytes, sizes.arena_bytes_min, std::max(slice.bytes, sizes.arena_bytes_min));
}

// Two models are open at once, and the reads of the disk alone have targets of their own.
Result<void> check_room(const Slice& slice, const ModelSizes& sizes, const Options& options) {
  const double cached_max = *std::max_element(options.cached.begin(), options.cached.end());
  std::vector<MemoryTerm> terms =
      terms_of(sizes, {.rows = prompt_tokens,
                       .threads = options.threads,
                       .kv_pool_bytes = kv_pool_tokens * sizes.kv_bytes_per_token,
                       .tokens_max = text_tokens});
  for (MemoryTerm& term : terms) term = {"2 x " + term.name, 2 * term.bytes};
  terms.push_back(
      {fmt::format("{} of experts", cached_max), arena_bytes_of(slice, sizes, cached_max)});
  terms.push_back({"experts alone", resident_arena_bytes(slice, sizes)});
  terms.push_back({"reads", reads_under_way * slice.expert_bytes()});
  return check_memory(terms);
}

Result<std::unique_ptr<Model>> open_slice(const Container& container, const ModelSizes& sizes,
                                          const Options& options, const Slice& slice,
                                          int64_t arena_bytes, RoutingTable& routing) {
  ModelOptions model;
  model.threads = options.threads;
  model.kernels = find_kernels("auto");
  model.arena_bytes = arena_bytes;
  model.kv_pool_bytes = kv_pool_tokens * sizes.kv_bytes_per_token;
  model.rows_max = prompt_tokens;
  model.verify = Verify::off;  // as when every expert was read before
  model.look_ahead = options.look_ahead;
  model.routing = &routing;
  model.usage_prior = slice.usage_prior();
  model.reader.kind = options.reader;
  return open_model(container, model);
}

// The same steps with every expert in memory: what arithmetic and memory allow.
class ComputeAlone {
 public:
  static Result<std::unique_ptr<ComputeAlone>> open(const Container& container, const Slice& slice,
                                                    const ModelSizes& sizes,
                                                    const Options& options) {
    auto alone = std::make_unique<ComputeAlone>(slice);
    alone->model_ = TRY(open_slice(container, sizes, options, slice,
                                   resident_arena_bytes(slice, sizes), alone->routing_));
    alone->run_.emplace(*alone->model_, alone->routing_);
    TRY(alone->run_->decode(2));
    return alone;
  }
  explicit ComputeAlone(const Slice& slice) : routing_(slice) {}

  struct TokenTime {
    double seconds = 0, head_seconds = 0;
  };
  Result<TokenTime> token_time() {
    const Run run = TRY(run_->decode(std::numeric_limits<int64_t>::max(), slice_seconds));
    if (run.stats.misses > 0) {
      return error(ErrorKind::internal, "wanted every expert in memory, got {} misses",
                   run.stats.misses);
    }
    const double seconds = median(run.seconds);
    return TokenTime{seconds, seconds * run.head_seconds / run.total_seconds()};
  }

 private:
  RoutingTable routing_;
  std::unique_ptr<Model> model_;
  std::optional<TextRun> run_;
};

// What a cache of that size reads for the measured tokens: [tokens x layers][experts]. What is
// wanted, where it reads nothing: the disk alone is measured all the same.
using Misses = std::vector<std::vector<const Tensor*>>;

Result<Misses> misses_of(const Slice& slice, const Options& options, int64_t arena_bytes,
                         const RoutingTable& routing) {
  std::vector<ExpertExtent> extents;
  for (const Tensor* tensor : slice.tensors) {
    extents.push_back({.file = tensor->file,
                       .offset = tensor->offset,
                       .bytes = tensor->bytes,
                       .name = {},
                       .file_name = {}});
  }
  InstantReader reader;
  ExpertCache cache =
      TRY(ExpertCache::create(extents, arena_bytes, reader, Verify::off, slice.experts));
  // As a model does that has this prior.
  const std::vector<float> prior = slice.usage_prior();
  for (size_t i = 0; i < prior.size(); ++i) cache.seed_heat(static_cast<int32_t>(i), prior[i]);
  cache.plan_warm_up(warm_start_order(prior, extents, arena_bytes));
  while (cache.warm_up()) {
  }
  cache.allow_read_ahead(options.look_ahead != LookAhead::off);
  Misses misses, wanted;
  for (int64_t token = 0; token < options.warm_up + options.tokens; ++token) {
    cache.advance(1);
    for (int64_t layer = 0; layer < std::ssize(slice.layers); ++layer) {
      std::vector<ExpertWant> wants;
      for (const int32_t expert : routing.experts_of(token, layer)) wants.push_back({expert, 1, 1});
      cache.begin_step(
          {static_cast<int32_t>(layer * slice.experts), static_cast<int32_t>(slice.experts)},
          wants);
      std::vector<const Tensor*> missed, all;
      for (const ExpertWant& want : wants) {
        all.push_back(slice.tensors[want.expert]);
        if (cache.find(want.expert)) continue;
        while (!cache.start_load(want.expert)) TRY(cache.wait_for_arrival().lease);
        missed.push_back(slice.tensors[want.expert]);
      }
      cache.drain();
      if (token < options.warm_up) continue;
      misses.push_back(std::move(missed));
      wanted.push_back(std::move(all));
    }
  }
  const auto is_empty = [](const auto& missed) { return missed.empty(); };
  return std::all_of(misses.begin(), misses.end(), is_empty) ? wanted : misses;
}

// The disk alone: the reads of the run by a reader of the same kind, nothing else going on. Targets
// are huge pages that were touched before, like the slots of an arena that has been filled once: a
// disk that writes into small pages is less than half as fast, one that meets new pages slower too.
class DiskAlone {
 public:
  static Result<std::unique_ptr<DiskAlone>> open(const Container& container, const Slice& slice,
                                                 const Options& options, Misses misses) {
    auto disk = std::make_unique<DiskAlone>();
    disk->misses_ = std::move(misses);
    disk->expert_bytes_ = slice.expert_bytes();
    disk->opened_ = TRY(open_block_reader(container.files(), {.kind = options.reader}));
    disk->targets_ = TRY(AlignedMemory::allocate(reads_under_way * slice.expert_bytes()));
    std::memset(disk->targets_.data(), 1, static_cast<size_t>(disk->targets_.size_bytes()));
    return disk;
  }

  // Bytes a second with always enough reads under way.
  Result<double> rate() {
    return measure(false, [](double seconds) { return seconds < slice_seconds; });
  }
  // The same, each layer's reads waited for before the next are begun.
  Result<double> serial_rate() {
    return measure(true, [](double seconds) { return seconds < slice_seconds; });
  }
  // The same until `is_done`.
  Result<double> rate_until(const std::atomic<bool>& is_done) {
    return measure(false, [&](double) { return !is_done; });
  }

 private:
  template <typename GoesOn>
  Result<double> measure(bool waits_for_layers, GoesOn goes_on) {
    const SteadyClock clock;
    BlockReader& reader = *opened_.reader;
    const int64_t begin_ns = clock.now_ns();
    const auto seconds = [&] { return static_cast<double>(clock.now_ns() - begin_ns) * 1e-9; };
    int64_t bytes = 0;
    while (goes_on(seconds())) {
      for (const Tensor* tensor : misses_[next_++ % misses_.size()]) {
        if (reader.outstanding() == reads_under_way) TRY(finish_one());
        reader.submit({.file = tensor->file,
                       .offset = tensor->offset,
                       .bytes = tensor->bytes,
                       .target = targets_.data() + free_.back() * expert_bytes_,
                       .tag = static_cast<uint64_t>(free_.back())});
        free_.pop_back();
        bytes += tensor->bytes;
      }
      if (waits_for_layers) TRY(finish_all());
    }
    TRY(finish_all());
    return static_cast<double>(bytes) / seconds();
  }
  Result<void> finish_one() {
    ReadCompletion completion = opened_.reader->wait();
    free_.push_back(static_cast<int64_t>(completion.tag));
    return std::move(completion.result);
  }
  Result<void> finish_all() {
    while (opened_.reader->outstanding() > 0) TRY(finish_one());
    return {};
  }

  Misses misses_;
  size_t next_ = 0;
  int64_t expert_bytes_ = 0;
  OpenedReader opened_;
  AlignedMemory targets_;
  std::vector<int64_t> free_ = [] {
    std::vector<int64_t> places(reads_under_way);
    std::iota(places.begin(), places.end(), 0);
    return places;
  }();
};

// How far apart the slices lie: a machine that drifts shows it here.
template <typename Of>
double spread_of(const std::vector<AloneSlice>& slices, Of of) {
  const auto [least, most] =
      std::minmax_element(slices.begin(), slices.end(),
                          [&](const AloneSlice& a, const AloneSlice& b) { return of(a) < of(b); });
  return of(*most) / of(*least);
}

// All slots of the arena were read into once, then the texts decide what stays in them.
Result<void> warm_up(Model& model, TextRun& text, const Options& options, double cached,
                     int64_t arena_bytes) {
  {
    constexpr int64_t megabyte = 1'000'000;
    Progress progress(fmt::format("stream: {} of the experts: fill the arena", cached), "MB",
                      arena_bytes / megabyte);
    while (model.warm_up()) progress.show(model.expert_stats().read_bytes / megabyte);
  }
  Progress progress(fmt::format("stream: {} of the experts: warm up", cached), "tokens",
                    options.warm_up);
  for (int64_t done = 0; done < options.warm_up;) {
    done += std::ssize(TRY(text.decode(options.warm_up - done, piece_seconds)).seconds);
    progress.show(done);
  }
  return {};
}

Result<void> bench_share(const Container& container, const Slice& slice, const ModelSizes& sizes,
                         const Options& options, double cached, ComputeAlone& compute) {
  const int64_t arena_bytes = arena_bytes_of(slice, sizes, cached);
  RoutingTable routing(slice, options.warm_up + 2 * options.tokens + 2 * text_tokens,
                       options.recall);
  Misses misses = TRY(misses_of(slice, options, arena_bytes, routing));
  const auto disk = TRY(DiskAlone::open(container, slice, options, std::move(misses)));
  const std::unique_ptr<Model> model =
      TRY(open_slice(container, sizes, options, slice, arena_bytes, routing));
  TextRun text(*model, routing);
  TRY(warm_up(*model, text, options, cached, arena_bytes));

  Run run;
  std::vector<StreamPiece> pieces;
  std::vector<AloneSlice> slices;
  const auto look = [&]() -> Result<void> {
    AloneSlice one{.disk_bytes_per_s = TRY(disk->rate()),
                   .serial_bytes_per_s = options.with_serial ? TRY(disk->serial_rate()) : 1};
    const ComputeAlone::TokenTime alone = TRY(compute.token_time());
    one.compute_seconds = alone.seconds;
    one.head_seconds = alone.head_seconds;
    std::atomic<bool> is_done{false};
    Result<double> disk_rate = 0.0;
    std::thread reads([&] { disk_rate = disk->rate_until(is_done); });
    const Result<ComputeAlone::TokenTime> together = compute.token_time();
    is_done = true;
    reads.join();
    one.together_disk_bytes_per_s = TRY(std::move(disk_rate));
    one.together_compute_seconds = TRY(together).seconds;
    slices.push_back(one);
    return {};
  };
  Progress progress(fmt::format("stream: {} of the experts: measure", cached), "tokens",
                    options.tokens);
  TRY(look());
  while (std::ssize(run.seconds) < options.tokens) {
    const Run piece = TRY(text.decode(options.tokens - std::ssize(run.seconds), piece_seconds));
    TRY(look());
    const int64_t needed = piece.stats.needed_reads();
    pieces.push_back({.tokens = std::ssize(piece.seconds),
                      .seconds = piece.total_seconds(),
                      .needed_bytes = static_cast<double>(needed * slice.expert_bytes())});
    run.seconds.insert(run.seconds.end(), piece.seconds.begin(), piece.seconds.end());
    run.stats += piece.stats;
    progress.show(std::ssize(run.seconds),
                  fmt::format("{:.2f} tok/s", static_cast<double>(std::ssize(piece.seconds)) /
                                                  piece.total_seconds()));
  }
  const StreamBound bound = bound_of(pieces, slices);

  const ExpertCacheStats& stats = run.stats;
  const auto tokens = static_cast<double>(run.seconds.size());
  const auto per_token = [&](double value) { return value / tokens; };
  const auto count = [&](int64_t value) { return per_token(static_cast<double>(value)); };
  double needed_bytes = 0;
  for (const StreamPiece& piece : pieces) needed_bytes += piece.needed_bytes;

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
  const double disk_rate = needed_bytes / bound.disk_seconds;
  if (needed_bytes > 0) say("disk", disk_rate * 1e-9, "GB/s");
  say("disk_spread", spread_of(slices, [](const AloneSlice& s) { return s.disk_bytes_per_s; }),
      "x");
  if (needed_bytes > 0) say("disk_alone", tokens / bound.disk_seconds, "tok/s");
  say("compute", tokens / bound.compute_seconds, "tok/s");
  say("head", 1e3 * per_token(bound.head_seconds), "ms/tok");
  say("compute_spread", spread_of(slices, [](const AloneSlice& s) { return s.compute_seconds; }),
      "x");
  say("together", tokens / bound.together_seconds, "tok/s", tokens / bound.least_seconds());
  say("needed", per_token(needed_bytes) * 1e-9, "GB/tok");
  say("read", count(stats.read_bytes) * 1e-9, "GB/tok");
  say("hits", count(stats.hits - stats.ahead_used), "1/tok", slice.token_experts());
  say("ahead_issued", count(stats.ahead_issued), "1/tok");
  say("ahead_used", count(stats.ahead_used), "1/tok");
  say("ahead_late", count(stats.ahead_late), "1/tok");
  say("ahead_wasted", count(stats.ahead_wasted), "1/tok");
  say("reading", stats.read_seconds / bound.seconds, "of time");
  if (needed_bytes > 0) {
    say("rate", static_cast<double>(stats.read_bytes) / stats.read_seconds * 1e-9, "GB/s",
        disk_rate * 1e-9);
  }
  say("waited", per_token(stats.wait_seconds) * 1e3, "ms/tok");
  say("median", 1 / median(run.seconds), "tok/s", tokens / bound.least_seconds());
  if (options.with_serial) {
    say("serial", tokens / bound.serial_seconds, "tok/s");
    say("over_serial", bound.over_serial(), "x");
  }
  say("of_together", tokens / bound.seconds, "tok/s", tokens / bound.together_seconds);
  say("total", tokens / bound.seconds, "tok/s", tokens / bound.least_seconds());
  return {};
}

Result<void> run(const Options& options) {
  const Container container = TRY(Container::open(options.model));
  const Slice slice = TRY(slice_of(container));
  const ModelSizes sizes = TRY(model_sizes(container, false));
  TRY(check_room(slice, sizes, options));
  const auto compute = TRY(ComputeAlone::open(container, slice, sizes, options));
  for (const double cached : options.cached) {
    TRY(bench_share(container, slice, sizes, options, cached, *compute));
  }
  return {};
}

}  // namespace

BenchCommand add_stream_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "stream",
      "tokens per second while experts come from disk, and the bound that disk, memory "
      "and arithmetic set; routing is made up, and what is read is not verified (glmd-inspect "
      "verify does that)");
  app->add_option("--model", options->model, "container, far larger than the share kept")
      ->required();
  app->add_option("--cached", options->cached, "shares of the experts that fit in memory")
      ->transform(within(0.001, 1.0))
      ->delimiter(',');
  app->add_option("--tokens", options->tokens, "measured tokens; every 64 another prompt begins")
      ->transform(within(1, 1000000));
  app->add_option("--warm-up", options->warm_up, "tokens before these; the arena is filled before")
      ->transform(within(0, 1000000));
  app->add_option("--look-ahead", options->look_ahead, "reads ahead of the router: on, off, auto")
      ->transform(one_of<LookAhead>(
          {{"on", LookAhead::on}, {"off", LookAhead::off}, {"auto", LookAhead::automatic}}));
  app->add_option("--reader", options->reader, "auto, io_uring, threads")
      ->transform(one_of<ReaderKind>({{"auto", ReaderKind::automatic},
                                      {"io_uring", ReaderKind::io_uring},
                                      {"threads", ReaderKind::threads}}));
  app->add_option("--recall", options->recall,
                  "share of a layer's experts guessed one layer before")
      ->transform(within(0.6, 0.88));
  app->add_option("--threads", options->threads, "threads of the team")->transform(within(1, 1024));
  app->add_flag("--serial", options->with_serial,
                "also: each layer's reads alone, then its arithmetic alone");
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
