#include "bench_stream.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "bench_memory.h"
#include "disk_alone.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "model/families/families.h"
#include "progress.h"
#include "stream_bound.h"
#include "stream_slice.h"
#include "text_run.h"
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

constexpr double piece_seconds = 1;    // then disk and arithmetic are measured alone
constexpr double slice_seconds = 0.5;  // of each of these measurements

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

// Disk and arithmetic, each alone, then both at once.
Result<AloneSlice> look(DiskAlone& disk, ComputeAlone& compute, bool with_serial) {
  AloneSlice slice{.disk_bytes_per_s = TRY(disk.rate(slice_seconds))};
  if (with_serial) slice.serial_bytes_per_s = TRY(disk.serial_rate(slice_seconds));
  const ComputeAlone::TokenTime alone = TRY(compute.token_time());
  slice.compute_seconds = alone.seconds;
  slice.head_seconds = alone.head_seconds;
  std::atomic<bool> is_done{false};
  Result<double> disk_rate = 0.0;
  std::thread reads([&] { disk_rate = disk.rate_until(is_done); });
  const Result<ComputeAlone::TokenTime> together = compute.token_time();
  is_done = true;
  reads.join();
  slice.together_disk_bytes_per_s = TRY(std::move(disk_rate));
  slice.together_compute_seconds = TRY(together).seconds;
  return slice;
}

struct Outcome {
  Run run;
  std::vector<StreamPiece> pieces;
  std::vector<AloneSlice> slices;
};

Result<Outcome> measure(const Container& container, const Slice& slice, const ModelSizes& sizes,
                        const Options& options, double cached, ComputeAlone& compute) {
  const int64_t arena_bytes = arena_bytes_of(slice, sizes, cached);
  RoutingTable routing(slice, options.warm_up + 2 * options.tokens + 2 * text_tokens,
                       options.recall);
  Misses misses = TRY(misses_of(slice, routing,
                                {.arena_bytes = arena_bytes,
                                 .looks_ahead = options.look_ahead != LookAhead::off,
                                 .warm_up = options.warm_up,
                                 .tokens = options.tokens}));
  DiskAlone disk = TRY(DiskAlone::open(container, slice, options.reader, std::move(misses)));
  const std::unique_ptr<Model> model =
      TRY(open_slice(container, sizes, options, slice, arena_bytes, routing));
  TextRun text(*model, routing);
  TRY(warm_up(*model, text, options, cached, arena_bytes));

  Outcome outcome;
  Run& run = outcome.run;
  Progress progress(fmt::format("stream: {} of the experts: measure", cached), "tokens",
                    options.tokens);
  outcome.slices.push_back(TRY(look(disk, compute, options.with_serial)));
  while (std::ssize(run.seconds) < options.tokens) {
    const Run piece = TRY(text.decode(options.tokens - std::ssize(run.seconds), piece_seconds));
    outcome.slices.push_back(TRY(look(disk, compute, options.with_serial)));
    const int64_t needed_bytes = piece.stats.needed_reads() * slice.expert_bytes();
    const auto tokens = std::ssize(piece.seconds);
    outcome.pieces.push_back({.tokens = tokens,
                              .seconds = piece.total_seconds(),
                              .needed_bytes = static_cast<double>(needed_bytes)});
    run.add(piece);
    progress.show(std::ssize(run.seconds),
                  fmt::format("{:.2f} tok/s", static_cast<double>(tokens) / piece.total_seconds()));
  }
  return outcome;
}

void report_outcome(const Outcome& outcome, const Slice& slice, const Options& options,
                    double cached) {
  const auto& [run, pieces, slices] = outcome;
  const StreamBound bound = bound_of(pieces, slices);
  const ExpertCacheStats& stats = run.stats;
  const auto tokens = static_cast<double>(run.seconds.size());
  const auto per_token = [&](double value) { return value / tokens; };
  const auto count = [&](int64_t value) { return per_token(static_cast<double>(value)); };
  const auto needed_bytes = static_cast<double>(stats.needed_reads() * slice.expert_bytes());

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
  say("ahead_dropped", count(stats.ahead_dropped), "1/tok");
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
}

Result<void> run(const Options& options) {
  const Container container = TRY(Container::open(options.model));
  const Slice slice = TRY(slice_of(container));
  const ModelSizes sizes = TRY(model_sizes(container, false));
  TRY(check_room(slice, sizes, options));
  const auto compute = TRY(ComputeAlone::open(container, slice, sizes, options));
  for (const double cached : options.cached) {
    report_outcome(TRY(measure(container, slice, sizes, options, cached, *compute)), slice, options,
                   cached);
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
