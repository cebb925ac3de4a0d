#include "bench_attention.h"

#include <cstring>
#include <functional>
#include <memory>

#include "generation/sampler.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "model/sequence_state.h"
#include "peak_loops.h"
#include "platform/aligned_memory.h"
#include "tools/command_line.h"

namespace glmd {
namespace {

struct Options {
  std::string kernels = "auto", kv_format = "f16";
  std::vector<int> threads = {1, 2};
  int64_t keys = 2048;
  int64_t rows = 64;
  int repetitions = 9;
  bool as_json = false;
};

// GLM-5.2
constexpr int64_t heads = 64, latent = 512, rope = 64, width = latent + rope;
constexpr int64_t index_heads = 32, index_width = 128, index_topk = 2048;
constexpr int64_t layers = 78, index_layers = 21, vocabulary = 154880;

constexpr int64_t context = 32768;
constexpr int64_t peak_rounds = 2000000;
constexpr int64_t heads_grain = 8, row_heads_grain = 32;

// Values of a bell's width that no one could mistake for a pattern.
float next_value(uint64_t& state) {
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    sum += static_cast<float>(state >> 40) * 0x1p-24F - 0.5F;
  }
  return sum;
}

std::vector<float> bell_values(int64_t n, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = next_value(seed);
  return values;
}

// Far larger than the caches, so that a row finds its keys in memory as a step does.
struct Cache {
  static Result<Cache> create(const KernelTable& kernels, const CacheRow& row, int64_t tokens) {
    const int64_t bytes = tokens * row.bytes();
    return Cache(kernels, row, tokens, TRY(AlignedMemory::allocate(bytes)));
  }
  Cache(const KernelTable& kernels, const CacheRow& of, int64_t tokens, AlignedMemory of_tokens)
      : row(of), memory(std::move(of_tokens)) {
    const int64_t block_bytes = cache_block_tokens * row.bytes();
    const std::vector<float> values = bell_values(cache_block_tokens * row.width, 7);
    for (int64_t i = 0; i < tokens / cache_block_tokens; ++i) {
      uint8_t* block = memory.data() + i * block_bytes;
      for (int64_t token = 0; token < cache_block_tokens; ++token)
        store_row(kernels, row, values.data() + token * row.width, block + token * row.bytes());
      blocks.push_back(block);
    }
  }
  CacheView view(int64_t first_token) const {
    return {blocks.data() + first_token / cache_block_tokens, row};
  }
  CacheRow row;
  AlignedMemory memory;
  std::vector<const uint8_t*> blocks;
};

struct Bench {
  static Result<std::unique_ptr<Bench>> create(const KernelTable& table, int thread_count,
                                               const Options& chosen) {
    const int64_t coded = chosen.kv_format == "int8" ? latent : 0;
    Cache keys = TRY(Cache::create(table, {.width = width, .coded = coded}, context));
    Cache index_keys = TRY(Cache::create(table, {.width = index_width}, 4 * context));
    AlignedMemory scratch = TRY(AlignedMemory::allocate(thread_count * scratch_bytes));
    return std::make_unique<Bench>(table, thread_count, chosen, std::move(keys),
                                   std::move(index_keys), std::move(scratch));
  }
  Bench(const KernelTable& table, int thread_count, const Options& chosen, Cache of_keys,
        Cache of_index_keys, AlignedMemory of_scratch)
      : kernels(table),
        options(chosen),
        team(thread_count),
        peak(find_peak_loops(table.name)),
        float_peak(find_float_peak(table.name)),
        keys(std::move(of_keys)),
        index_keys(std::move(of_index_keys)),
        scratch(std::move(of_scratch)) {}

  static constexpr int64_t scratch_bytes = (attention_scratch_floats(heads, latent, rope) +
                                            index_scratch_floats(index_heads, index_width)) *
                                               4 / 64 * 64 +
                                           64;
  float* scratch_of(int thread) {
    return reinterpret_cast<float*>(scratch.data() + thread * scratch_bytes);
  }

  const KernelTable& kernels;
  const Options& options;
  Team team;
  const PeakLoops& peak;
  const FloatPeak float_peak;
  Cache keys, index_keys;
  AlignedMemory scratch;
};

// Done over [0, count) by the team; `round` chooses other memory each time.
struct Phase {
  int64_t count = 1, grain = 1;
  std::function<void(int round, int64_t begin, int64_t end, int thread)> run;
};

// One kind of work: its phases one after the other, what one call multiplies and reads.
struct Work {
  std::string part;
  int64_t products = 0, bytes = 0;
  std::vector<Phase> phases;
};

double measure(Bench& bench, const Work& work) {
  std::vector<double> seconds, products, peak_products, bytes, read_bytes;
  std::vector<uint64_t> sink(static_cast<size_t>(bench.team.thread_count()));
  const auto threads = static_cast<double>(bench.team.thread_count());
  for (int i = 0; i < bench.options.repetitions + 1; ++i) {
    const double peak_seconds = measure_seconds(bench.team, bench.team.thread_count(), 1,
                                                [&](int64_t begin, int64_t end, int) {
                                                  if (begin < end)
                                                    bench.float_peak.multiply(peak_rounds);
                                                });
    const int64_t all = bench.keys.memory.size_bytes();
    const double read_seconds =
        measure_seconds(bench.team, all, 4096, [&](int64_t begin, int64_t end, int thread) {
          sink[static_cast<size_t>(thread)] ^=
              bench.peak.read(bench.keys.memory.data() + begin, end - begin);
        });
    double work_seconds = 0;
    for (const Phase& phase : work.phases) {
      work_seconds += measure_seconds(
          bench.team, phase.count, phase.grain,
          [&](int64_t begin, int64_t end, int thread) { phase.run(i, begin, end, thread); });
    }
    if (i == 0) continue;  // warms up
    seconds.push_back(work_seconds);
    products.push_back(static_cast<double>(work.products) / work_seconds * 1e-9);
    peak_products.push_back(static_cast<double>(peak_rounds * bench.float_peak.products) * threads /
                            peak_seconds * 1e-9);
    bytes.push_back(static_cast<double>(work.bytes) / work_seconds * 1e-9);
    read_bytes.push_back(static_cast<double>(all) / read_seconds * 1e-9);
  }
  Measurement m = {.bench = "attention",
                   .varied = {{"kernels", bench.kernels.name},
                              {"kv", bench.options.kv_format},
                              {"threads", int64_t{bench.team.thread_count()}}},
                   .part = work.part,
                   .value = median(seconds) * 1e3,
                   .unit = "ms",
                   .bound = {}};
  report(m, bench.options.as_json);
  if (work.products > 0) {
    m.part = work.part + ": products";
    m.value = median(products);
    m.unit = "GMAC/s";
    m.bound = median(peak_products);
    report(m, bench.options.as_json);
  }
  if (work.bytes > 0) {
    m.part = work.part + ": bytes";
    m.value = median(bytes);
    m.unit = "GB/s";
    m.bound = median(read_bytes);
    report(m, bench.options.as_json);
  }
  return median(seconds);
}

// Rows that each see `key_count` keys. As in the model: many rows are shared out as rows and heads,
// one row as parts of its heads where they suffice, else as spans of keys, merged in the end.
struct AttentionRows {
  AttentionRows(Bench& owner, int64_t rows, bool gathered)
      : bench(owner),
        key_count(owner.options.keys),
        shares_spans(rows < owner.team.thread_count() &&
                     heads / row_heads_grain % owner.team.thread_count() != 0),
        queries(bell_values(rows * heads * width, 3)),
        floats(static_cast<size_t>((shares_spans ? spans() : rows) * heads * (latent + 2))),
        out(static_cast<size_t>(heads * latent)),
        is_gathered(gathered) {
    for (int64_t i = 0; is_gathered && i < key_count; ++i)
      positions.push_back(static_cast<int32_t>(i * context / key_count));
    for (int64_t i = 0; i < (shares_spans ? spans() : rows); ++i) {
      float* part = floats.data() + i * heads * (latent + 2);
      states.push_back({.max = part, .sum = part + heads, .out = part + 2 * heads});
    }
  }

  int64_t spans() const { return attention_span_count(key_count); }

  void attend(int round, int64_t row, int64_t span_begin, int64_t span_end, int64_t head_begin,
              int64_t head_end, int thread, const AttentionState& state) {
    const int64_t windows = std::max<int64_t>(1, context / key_count);
    const AttentionInput input{
        .queries = queries.data() + row * heads * width,
        .heads = heads,
        .latent = latent,
        .rope = rope,
        .cache = bench.keys.view(is_gathered ? 0 : round % windows * key_count),
        .positions = is_gathered ? positions.data() : nullptr,
        .key_count = key_count,
        .scale = 1.0F / 16};
    bench.kernels.attend_spans(input, span_begin, span_end, head_begin, head_end,
                               bench.scratch_of(thread), state);
  }

  Bench& bench;
  const int64_t key_count;
  const bool shares_spans;
  std::vector<float> queries, floats, out;
  std::vector<AttentionState> states;  // of rows, or of spans
  bool is_gathered;
  std::vector<int32_t> positions;
};

Work attention_work(Bench& bench, std::string part, int64_t rows, bool is_gathered) {
  const auto all = std::make_shared<AttentionRows>(bench, rows, is_gathered);
  Work work{.part = std::move(part),
            .products = rows * heads * all->key_count * (2 * latent + rope),
            .bytes = rows == 1 ? all->key_count * bench.keys.row.bytes() : 0,
            .phases = {}};
  const KernelTable& kernels = bench.kernels;
  if (all->shares_spans) {
    work.phases.push_back(
        {.count = all->spans(), .run = [all](int round, int64_t begin, int64_t end, int thread) {
           for (int64_t span = begin; span < end; ++span)
             all->attend(round, 0, span, span + 1, 0, heads, thread, all->states[span]);
         }});
    work.phases.push_back(
        {.count = heads, .run = [all, &kernels](int, int64_t begin, int64_t end, int) {
           kernels.finish_attention(all->states.data(), all->spans(), latent, begin, end,
                                    all->out.data());
         }});
    return work;
  }
  work.phases.push_back({.count = rows * heads,
                         .grain = rows == 1 ? row_heads_grain : heads_grain,
                         .run = [all, &kernels](int round, int64_t begin, int64_t end, int thread) {
                           for (int64_t pair = begin; pair < end;) {
                             const int64_t row = pair / heads, head = pair % heads;
                             const int64_t head_end = std::min(heads, head + end - pair);
                             const AttentionState& state = all->states[row];
                             all->attend(round, row, 0, all->spans(), head, head_end, thread,
                                         state);
                             kernels.finish_attention(&state, 1, latent, head, head_end, state.out);
                             pair += head_end - head;
                           }
                         }});
  return work;
}

Work index_work(Bench& bench, const std::shared_ptr<std::vector<float>>& scores) {
  const auto queries =
      std::make_shared<std::vector<float>>(bell_values(index_heads * index_width, 4));
  const auto weights = std::make_shared<std::vector<float>>(bell_values(index_heads, 5));
  return {.part = "index 32k",
          .products = context * index_heads * index_width,
          .bytes = context * index_width * 2,
          .phases = {{.count = context,
                      .grain = cache_block_tokens,
                      .run = [=, &bench](int round, int64_t begin, int64_t end, int thread) {
                        bench.kernels.index_scores(queries->data(), weights->data(), index_heads,
                                                   bench.index_keys.view(round % 4 * context),
                                                   0.0884F, bench.scratch_of(thread),
                                                   scores->data(), begin, end);
                      }}}};
}

Work top_work(Bench& bench) {
  const auto scores = std::make_shared<std::vector<float>>(bell_values(context, 6));
  const auto scratch = std::make_shared<std::vector<int32_t>>(top_scratch_ints(context));
  const auto positions = std::make_shared<std::vector<int32_t>>(index_topk);
  return {.part = "top 2048/32k", .phases = {{.run = [=, &bench](int, int64_t, int64_t, int) {
                                    bench.kernels.select_top(scores->data(), context, index_topk,
                                                             scratch->data(), positions->data());
                                  }}}};
}

Work sampling_work(std::string part, const KernelTable& kernels, const SamplingOptions& sampling) {
  const auto logits = std::make_shared<std::vector<float>>(bell_values(vocabulary, 8));
  for (float& logit : *logits) logit *= 6.0F;
  const auto sampler = std::make_shared<Sampler>(std::vector<uint8_t>{}, kernels);
  return {.part = std::move(part), .phases = {{.run = [=](int round, int64_t, int64_t, int) {
                                     CHECK(sampler->sample(*logits, sampling, round).ok());
                                   }}}};
}

Result<void> bench_all(const KernelTable& kernels, int thread_count, const Options& options) {
  const std::unique_ptr<Bench> owned = TRY(Bench::create(kernels, thread_count, options));
  Bench& bench = *owned;
  const double near = measure(bench, attention_work(bench, "decode row", 1, false));
  const double far = measure(bench, attention_work(bench, "gathered row", 1, true));
  measure(bench, attention_work(bench, "prefill", options.rows, false));
  const auto scores = std::make_shared<std::vector<float>>(context);
  const double index = measure(bench, index_work(bench, scores));
  const double top = measure(bench, top_work(bench));
  measure(bench, sampling_work("greedy", kernels, {}));
  measure(bench, sampling_work("temperature", kernels, {.temperature = 1, .top_p = 1, .seed = 1}));
  measure(bench, sampling_work("top_p", kernels, {.temperature = 1, .top_p = 0.95, .seed = 1}));
  const double cost = index_layers * (index + top) + layers * (far - near);
  report({.bench = "attention",
          .varied = {{"kernels", kernels.name},
                     {"kv", options.kv_format},
                     {"threads", int64_t{thread_count}}},
          .part = "2k to 32k",
          .value = cost * 1e3,
          .unit = "ms/token",
          .bound = {}},
         options.as_json);
  return {};
}

Result<void> run(const Options& options) {
  const KernelTable* kernels = TRY(kernels_named(options.kernels));
  for (const int threads : options.threads) TRY(bench_all(*kernels, threads, options));
  return {};
}

}  // namespace

BenchCommand add_attention_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "attention", "attention, indexer, sampling: ms, ratios to float and read loops");
  app->add_option("--kernels", options->kernels, "table: auto, scalar, avx2, avx512");
  app->add_option("--threads", options->threads, "numbers of threads")
      ->transform(within(1, 1024))
      ->delimiter(',');
  app->add_option("--kv", options->kv_format, "keys of attention: f16 or int8")
      ->check(CLI::IsMember({"f16", "int8"}));
  app->add_option("--keys", options->keys, "keys that a row sees")->transform(within(1, 32768));
  app->add_option("--rows", options->rows, "rows of a prefill block")->transform(within(1, 4096));
  app->add_option("--repetitions", options->repetitions, "medians are of so many")
      ->transform(within(1, 1000));
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
