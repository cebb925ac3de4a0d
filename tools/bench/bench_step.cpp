#include "bench_step.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "bench_memory.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "model/families/families.h"
#include "peak_loops.h"
#include "platform/aligned_memory.h"
#include "platform/cpu.h"
#include "platform/random.h"
#include "storage/container.h"
#include "tools/command_line.h"

namespace glmd {
namespace {

struct Options {
  std::string model;
  std::string kernels = "auto", kv_format = "f16";
  int threads = physical_core_count();
  int64_t context = 512, tokens = 512;
  int repetitions = 7;
  bool pins = false;
  bool as_json = false;
};

constexpr int64_t read_bytes = int64_t{512} << 20;  // of the read loop: far beyond the caches
constexpr int64_t peak_rounds = 1000000;
constexpr int64_t warm_up_passes_max = 16;
constexpr int64_t barrier_rounds = 2000;
constexpr int decodes_at_once = 5;  // for each prefill

constexpr const char* part_names[step_part_count] = {"projections", "attention", "indexer",
                                                     "router",      "experts",   "shared-expert",
                                                     "dense-mlp",   "head",      "rest"};

// What a part of a pass has to do at least: each weight and each key once from memory, each
// product once.
struct Work {
  double bytes = 0, int8_products = 0, float_products = 0;
  Work& operator+=(const Work& other) {
    bytes += other.bytes;
    int8_products += other.int8_products;
    float_products += other.float_products;
    return *this;
  }
};
using Works = std::array<Work, step_part_count>;  // by StepPart

struct Peaks {
  double read = 0, int8 = 0, floats = 0;  // a second, on all threads
};

Peaks mean(const Peaks& a, const Peaks& b) {
  return {(a.read + b.read) / 2, (a.int8 + b.int8) / 2, (a.floats + b.floats) / 2};
}

// Reading and multiplying overlap.
double seconds_at_least(const Work& work, const Peaks& peaks) {
  return std::max(work.bytes / peaks.read,
                  work.int8_products / peaks.int8 + work.float_products / peaks.floats);
}

// One kind of pass: one row behind `context` tokens, or many rows without any.
struct Phase {
  const char* name;
  int64_t rows, context;
  SequenceState* sequence;
};

// The times of one pass: by layer, the last with all that comes after the layers.
struct PassTimes {
  std::vector<StepTimes::Seconds> layers;
  std::vector<int64_t> experts;  // different ones, by layer
  double seconds = 0;
  Peaks peaks;  // beside it: what a host gives moves within minutes
};

class StepBench {
 public:
  static Result<StepBench> open(const Options& options);
  Result<void> run();

 private:
  StepBench(const Options& options, Container container, const KernelTable& kernels)
      : options_(options), container_(std::move(container)), kernels_(kernels) {}

  Result<PassTimes> run_pass(const Phase& phase, bool commits);
  Result<void> warm_up(const Phase& phase);
  Peaks measure_peaks();
  double measure_barrier_us();
  Works layer_works(int64_t layer, const Phase& phase, int64_t experts) const;
  Work weights_work(const Tensor& tensor, int64_t rows) const;
  std::string kind_of(int64_t layer) const;
  void report_peaks(const std::vector<PassTimes>& passes, const std::vector<double>& barriers);
  void report_phase(const Phase& phase, const std::vector<PassTimes>& passes);
  void report_part(const Phase& phase, const std::string& kind, const std::string& part,
                   const std::vector<double>& seconds, const Work& work,
                   const std::vector<double>& bounds);

  const Options options_;
  Container container_;
  const KernelTable& kernels_;
  int64_t key_bytes_ = 0;  // of a token in one layer
  std::vector<int> processors_;
  std::unique_ptr<StepTimes> times_ = std::make_unique<StepTimes>();
  std::unique_ptr<Model> model_;
  std::unique_ptr<Team> team_;  // for the loops
  AlignedMemory memory_;
  SplitMix random_{1};
};

// Both passes stay among the positions that the model was made for.
Result<void> check_positions(const Options& options, int64_t context_max) {
  if (options.context >= context_max) {
    return error(ErrorKind::usage,
                 "--context: wanted at most {} of the {} tokens the model was made for, got {}",
                 context_max - 1, context_max, options.context);
  }
  if (options.tokens > context_max) {
    return error(ErrorKind::usage,
                 "--tokens: wanted at most {}, which the model was made for, got {}", context_max,
                 options.tokens);
  }
  return {};
}

Result<StepBench> StepBench::open(const Options& options) {
  const KernelTable* kernels = TRY(kernels_named(options.kernels));
  StepBench bench(options, TRY(Container::open(options.model)), *kernels);
  if (options.pins) bench.processors_ = compute_processors();
  if (options.pins && static_cast<int>(bench.processors_.size()) < options.threads) {
    return error(ErrorKind::usage, "--pin: wanted a core for each of {} threads, got {}",
                 options.threads, bench.processors_.size());
  }
  const KvFormat kv_format = *kv_format_from(options.kv_format);  // the command line saw to it
  const ModelSizes sizes = TRY(model_sizes(bench.container_, false, kv_format));
  TRY(check_positions(options, sizes.context_max));
  bench.key_bytes_ = sizes.key_bytes;
  const int64_t tokens = round_up(options.context + 1, cache_block_tokens) +
                         round_up(options.tokens, cache_block_tokens);
  const int64_t kv_pool_bytes = tokens * sizes.kv_bytes_per_token;
  std::vector<MemoryTerm> terms = terms_of(sizes, {.rows = options.tokens,
                                                   .threads = options.threads,
                                                   .kv_pool_bytes = kv_pool_bytes,
                                                   .tokens_max = tokens});
  terms.push_back({"all experts", sizes.experts_bytes});
  terms.push_back({"read loop", read_bytes});
  TRY(check_memory(terms));
  bench.model_ = TRY(open_model(bench.container_, {.threads = options.threads,
                                                   .processors = bench.processors_,
                                                   .kernels = kernels,
                                                   .arena_bytes = sizes.experts_bytes,
                                                   .kv_pool_bytes = kv_pool_bytes,
                                                   .kv_format = kv_format,
                                                   .rows_max = options.tokens,
                                                   .times = bench.times_.get()}));
  bench.memory_ = TRY(AlignedMemory::allocate(read_bytes));
  std::fill_n(bench.memory_.data(), read_bytes, uint8_t{1});
  return bench;
}

// Random tokens, so that passes choose different experts.
Result<PassTimes> StepBench::run_pass(const Phase& phase, bool commits) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < phase.rows; ++i)
    tokens.push_back(static_cast<int32_t>(random_.below(model_->shape().vocabulary)));
  const BatchPart part{.sequence = phase.sequence, .tokens = tokens, .wants_logits = true};
  PassTimes times;
  times_->take();
  const PassPtr pass = TRY(model_->begin({&part, 1}));
  while (!pass->is_done()) {
    const ExpertCacheStats before = model_->expert_stats();
    TRY(pass->run_layer());
    const ExpertCacheStats after = model_->expert_stats();
    times.experts.push_back(after.hits + after.misses - before.hits - before.misses);
    times.layers.push_back(times_->take());
    for (const double seconds : times.layers.back()) times.seconds += seconds;
  }
  if (commits) pass->commit();
  return times;
}

// Until all experts that a pass may want are in memory.
Result<void> StepBench::warm_up(const Phase& phase) {
  int64_t misses = 1;
  for (int64_t i = 0; i < warm_up_passes_max && misses > 0; ++i) {
    const int64_t before = model_->expert_stats().misses;
    TRY(run_pass(phase, /*commits=*/false));
    misses = model_->expert_stats().misses - before;
  }
  return {};
}

Peaks StepBench::measure_peaks() {
  const PeakLoops& loops = find_peak_loops(kernels_.name);
  const FloatPeak floats = find_float_peak(kernels_.name);
  std::vector<uint64_t> sink(static_cast<size_t>(team_->thread_count()));
  const auto threads = static_cast<double>(team_->thread_count());
  Peaks peaks;
  peaks.read =
      static_cast<double>(read_bytes) /
      measure_seconds(*team_, read_bytes, 1 << 20, [&](int64_t begin, int64_t end, int thread) {
        sink[static_cast<size_t>(thread)] ^= loops.read(memory_.data() + begin, end - begin);
      });
  peaks.int8 = static_cast<double>(peak_rounds * loops.int8_products) * threads /
               measure_seconds(*team_, team_->thread_count(), 1,
                               [&](int64_t, int64_t, int) { loops.multiply_int8(peak_rounds); });
  peaks.floats = static_cast<double>(peak_rounds * floats.products) * threads /
                 measure_seconds(*team_, team_->thread_count(), 1,
                                 [&](int64_t, int64_t, int) { floats.multiply(peak_rounds); });
  return peaks;
}

// From one task of the team to the next.
double StepBench::measure_barrier_us() {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < barrier_rounds; ++i)
    team_->run(team_->thread_count(), 1, [](int64_t, int64_t, int) {});
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / barrier_rounds;
}

Work StepBench::weights_work(const Tensor& tensor, int64_t rows) const {
  const bool is_pair =
      tensor.layout == TensorLayout::gate_up || tensor.layout == TensorLayout::expert;
  const double matrices = tensor.layout == TensorLayout::expert ? 3 : is_pair ? 2 : 1;
  const double products =
      matrices * static_cast<double>(tensor.rows * tensor.columns) * static_cast<double>(rows);
  Work work{.bytes = static_cast<double>(tensor.bytes)};
  (is_quantised(tensor.format) ? work.int8_products : work.float_products) = products;
  return work;
}

Works StepBench::layer_works(int64_t layer, const Phase& phase, int64_t experts) const {
  const CheckpointConfig& config = container_.checkpoint();
  Works works;
  const auto at = [&](StepPart part) -> Work& { return works[static_cast<size_t>(part)]; };
  const std::string prefix = fmt::format("layers.{}.", layer);
  const auto begin = container_.tensors().lower_bound(prefix);
  for (auto it = begin; it != container_.tensors().end() && it->first.starts_with(prefix); ++it) {
    const Tensor& tensor = it->second;
    const std::string_view name = std::string_view(it->first).substr(prefix.size());
    if (tensor.layout == TensorLayout::vector) continue;
    if (name.starts_with("attention."))
      at(StepPart::projections) += weights_work(tensor, phase.rows);
    if (name.starts_with("mlp.")) at(StepPart::dense_mlp) += weights_work(tensor, phase.rows);
    if (name.starts_with("shared."))
      at(StepPart::shared_expert) += weights_work(tensor, phase.rows);
    if (name == "router") at(StepPart::router) += weights_work(tensor, phase.rows);
    // Below index_topk tokens only the keys are made.
    const bool selects = phase.context + phase.rows > config.index_topk;
    if (name == "indexer.k" || (selects && name.starts_with("indexer.")))
      at(StepPart::indexer) += weights_work(tensor, phase.rows);
    if (name == "experts.0") {
      Work& work = at(StepPart::experts);
      work = weights_work(tensor, phase.rows * config.experts_per_token);
      work.bytes *= static_cast<double>(experts);
    }
  }
  // Every row meets the keys before it and its own, or the selected ones.
  double pairs = 0;
  for (int64_t row = 0; row < phase.rows; ++row)
    pairs += static_cast<double>(std::min(phase.context + row + 1, config.index_topk));
  const int64_t latent = config.kv_lora_rank, width = latent + config.qk_rope_head_dim;
  const int64_t keys = std::min(phase.context + phase.rows, config.index_topk + phase.rows);
  at(StepPart::attention) = {
      .bytes = static_cast<double>(keys * key_bytes_),
      .float_products = pairs * static_cast<double>(config.heads * (width + latent))};
  return works;
}

std::string StepBench::kind_of(int64_t layer) const {
  const CheckpointConfig& config = container_.checkpoint();
  const std::string kind = config.is_sparse[static_cast<size_t>(layer)] ? "moe" : "dense";
  return config.indexer_full[static_cast<size_t>(layer)] ? kind : kind + ":shared";
}

// `seconds` and `bounds` by pass.
void StepBench::report_part(const Phase& phase, const std::string& kind, const std::string& part,
                            const std::vector<double>& seconds, const Work& work,
                            const std::vector<double>& bounds) {
  const double middle = median(seconds);
  Measurement m{.bench = "step",
                .varied = {{"phase", phase.name},
                           {"layer", kind},
                           {"threads", int64_t{options_.threads}},
                           {"ms", middle * 1e3},
                           {"MB", work.bytes * 1e-6},
                           {"GMAC", (work.int8_products + work.float_products) * 1e-9}},
                .part = part,
                .value = middle * 1e3,
                .unit = "ms",
                .bound = {}};
  // Work that has a bound is told as a rate, so that the ratio is what was reached of it.
  const double ratio = median_ratio(bounds, seconds);
  if (ratio > 0) {
    m.value = 1 / middle;
    m.unit = "1/s";
    m.bound = m.value / ratio;
  }
  report(m, options_.as_json);
}

void StepBench::report_phase(const Phase& phase, const std::vector<PassTimes>& passes) {
  const auto layers = static_cast<int64_t>(passes[0].layers.size());
  Work total_work;
  std::vector<double> totals, total_bounds(passes.size());
  for (const PassTimes& pass : passes) totals.push_back(pass.seconds);
  std::map<std::string, bool> is_told;  // one layer of each kind
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    std::vector<double> experts;
    for (const PassTimes& pass : passes)
      experts.push_back(static_cast<double>(pass.experts[index]));
    Works works = layer_works(layer, phase, static_cast<int64_t>(median(experts)));
    if (layer + 1 == layers) {
      works[static_cast<size_t>(StepPart::head)] = weights_work(*container_.find("head"), 1);
    }
    const bool is_new = !is_told[kind_of(layer)];
    is_told[kind_of(layer)] = true;
    for (int part = 0; part < step_part_count; ++part) {
      const Work& work = works[static_cast<size_t>(part)];
      total_work += work;
      std::vector<double> seconds, bounds;
      for (size_t i = 0; i < passes.size(); ++i) {
        seconds.push_back(passes[i].layers[index][static_cast<size_t>(part)]);
        bounds.push_back(seconds_at_least(work, passes[i].peaks));
        total_bounds[i] += bounds[i];
      }
      const bool is_head = part == static_cast<int>(StepPart::head);
      if (median(seconds) > 0 && (is_new || is_head)) {
        report_part(phase, is_head ? "-" : kind_of(layer), part_names[part], seconds, work, bounds);
      }
    }
  }
  report_part(phase, "all", "total", totals, total_work, total_bounds);
}

void StepBench::report_peaks(const std::vector<PassTimes>& passes,
                             const std::vector<double>& barriers) {
  std::vector<double> reads, int8s, floats;
  for (const PassTimes& pass : passes) {
    reads.push_back(pass.peaks.read * 1e-9);
    int8s.push_back(pass.peaks.int8 * 1e-9);
    floats.push_back(pass.peaks.floats * 1e-9);
  }
  const Varied threads = {{"threads", int64_t{options_.threads}},
                          {"kernels", kernels_.name},
                          {"kv", container_.is_reference() ? "f32" : options_.kv_format}};
  report({"step", threads, "read", median(reads), "GB/s", {}}, options_.as_json);
  report({"step", threads, "int8", median(int8s), "GMAC/s", {}}, options_.as_json);
  report({"step", threads, "float", median(floats), "GMAC/s", {}}, options_.as_json);
  report({"step", threads, "barrier", median(barriers), "us", {}}, options_.as_json);
}

Result<void> StepBench::run() {
  team_ = std::make_unique<Team>(options_.threads, processors_);
  const std::unique_ptr<SequenceState> behind = TRY(model_->new_sequence(options_.context + 1));
  const std::unique_ptr<SequenceState> fresh = TRY(model_->new_sequence(options_.tokens));
  const Phase prefill{"prefill", options_.tokens, 0, fresh.get()};
  const Phase decode{"decode", 1, options_.context, behind.get()};
  TRY(warm_up(prefill));
  for (int64_t done = 0; done < options_.context;) {
    const int64_t rows = std::min(options_.tokens, options_.context - done);
    TRY(run_pass({"", rows, done, behind.get()}, /*commits=*/true));
    done += rows;
  }
  TRY(warm_up(decode));

  std::vector<PassTimes> prefills, decodes;
  std::vector<double> barriers;
  Peaks before = measure_peaks();
  const auto run_beside_peaks = [&](const Phase& phase) -> Result<PassTimes> {
    PassTimes times = TRY(run_pass(phase, /*commits=*/false));
    const Peaks after = measure_peaks();
    times.peaks = mean(before, after);
    before = after;
    return times;
  };
  for (int i = 0; i < options_.repetitions; ++i) {
    barriers.push_back(measure_barrier_us());
    for (int j = 0; j < decodes_at_once; ++j) decodes.push_back(TRY(run_beside_peaks(decode)));
    prefills.push_back(TRY(run_beside_peaks(prefill)));
  }
  report_peaks(decodes, barriers);
  report_phase(decode, decodes);
  report_phase(prefill, prefills);
  return {};
}

}  // namespace

BenchCommand add_step_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "step", "one decode step and one prefill of a model in memory, by part, and their bounds");
  app->add_option("--model", options->model, "a container; all its experts must fit in memory")
      ->required();
  app->add_option("--kernels", options->kernels, "table: auto, scalar, avx2, avx512");
  app->add_option("--kv", options->kv_format, "keys of attention: f16 or int8")
      ->check(CLI::IsMember({"f16", "int8"}));
  app->add_option("--threads", options->threads, "threads that compute")
      ->transform(within(1, 1024));
  app->add_option("--context", options->context, "tokens before the decode step")
      ->transform(within(0, 1 << 20));
  app->add_option("--tokens", options->tokens, "rows of the prefill")->transform(within(1, 4096));
  app->add_option("--repetitions", options->repetitions, "medians are of so many")
      ->transform(within(1, 1000));
  app->add_flag("--pin", options->pins, "keep each thread on a core of its own");
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options]() -> Result<void> {
            StepBench bench = TRY(StepBench::open(*options));
            return bench.run();
          }};
}

}  // namespace glmd
