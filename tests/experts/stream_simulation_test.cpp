// Streaming in made-up time: the cache, the queue of reads and the order of work as they are, over
// a disk that takes its segments in turn, kernels that only let time pass, and made-up routing. No
// clock on the wall is in it, so what a policy is worth can be seen to the third digit.
#include <gtest/gtest.h>

#include <deque>

#include "experts/least_time.h"
#include "experts/run_experts.h"
#include "experts/synthetic_routing.h"
#include "platform/parallel.h"
#include "storage/read_queue.h"

namespace glmd {
namespace {

// A slice of GLM-5.2 on two cores and a disk of 3.5 GB/s, in milliseconds.
constexpr int64_t layers = 12, experts = 48, chosen = 8;
constexpr int64_t expert_size = 20054016;
constexpr double expert_ms = 0.44, shared_ms = 0.5, attention_ms = 2.9, guess_ms = 0.25;
constexpr double head_ms = 4.9, first_attention_ms = 2.6, first_mlp_ms = 3.3;
constexpr double disk_bytes_per_ms = 3.5e6, latency_ms = 0.08;

double now_ms = 0;  // kernels are plain functions

void let_time_pass(const Matrix& w, const Activations&, float*, int64_t, int64_t begin,
                   int64_t end) {
  now_ms += expert_ms * static_cast<double>(end - begin) / static_cast<double>(w.rows);
}
void take_no_time(const Matrix&, const Activations&, float*, int64_t, int64_t, int64_t) {}

// Up to 16 segments under way, served one after the other.
class SimulatedDisk : public BlockReader {
 public:
  void submit(const ReadRequest& request) override {
    catch_up();
    queue_.submit(request);
    begin(now_ms);
  }
  void promote(uint64_t tag) override {
    catch_up();
    queue_.promote(tag);
    begin(now_ms);
  }
  void cancel(uint64_t tag) override {
    catch_up();
    queue_.cancel(tag);
    begin(now_ms);
  }
  std::optional<ReadCompletion> wait_for(int64_t) override {
    for (;;) {
      if (std::optional<ReadCompletion> completion = poll()) return completion;
      CHECK(!under_way_.empty());
      now_ms = std::max(now_ms, under_way_.front().done_ms);
    }
  }
  std::optional<ReadCompletion> poll() override {
    catch_up();
    return queue_.poll();
  }
  int64_t outstanding() const override { return queue_.outstanding(); }

 private:
  struct UnderWay {
    ReadSegment segment;
    double done_ms = 0;
  };
  static std::vector<File> no_files() {
    std::vector<File> files;
    files.emplace_back(-1, "experts.safetensors");
    return files;
  }
  void begin(double at_ms) {
    while (under_way_.size() < 16) {
      const std::optional<ReadSegment> segment = queue_.try_take();
      if (!segment) return;
      free_ms_ = std::max(at_ms + latency_ms, free_ms_) +
                 static_cast<double>(segment->bytes) / disk_bytes_per_ms;
      under_way_.push_back({*segment, free_ms_});
    }
  }
  void catch_up() {
    while (!under_way_.empty() && under_way_.front().done_ms <= now_ms) {
      UnderWay one = under_way_.front();
      under_way_.pop_front();
      queue_.advance(one.segment, one.segment.bytes);
      begin(one.done_ms);
      queue_.hand_over();
    }
  }

  ReadQueue queue_{no_files(), {}};
  std::deque<UnderWay> under_way_;
  double free_ms_ = 0;
};

struct Outcome {
  double token_ms = 0, disk_ms = 0;
  double compute_ms(bool looks_ahead) const {
    const double layer_ms =
        attention_ms + shared_ms + chosen * expert_ms + (looks_ahead ? guess_ms : 0);
    return first_attention_ms + first_mlp_ms + head_ms + layers * layer_ms;
  }
};

class Simulation {
 public:
  Simulation(double cached, bool looks_ahead) : looks_ahead_(looks_ahead) {
    std::vector<ExpertExtent> extents;
    for (int64_t i = 0; i < layers * experts; ++i) {
      extents.push_back(
          {.offset = i * expert_size, .bytes = expert_size, .name = {}, .file_name = {}});
    }
    const auto arena_bytes = static_cast<int64_t>(cached * static_cast<double>(expert_size) *
                                                  static_cast<double>(layers * experts));
    cache_.emplace(
        ExpertCache::create(std::move(extents), arena_bytes, disk_, Verify::off, experts).value());
    cache_->allow_read_ahead(looks_ahead);
    kernels_.gate_up[static_cast<int>(BlockFormat::f32)] = let_time_pass;
    kernels_.matmul[static_cast<int>(BlockFormat::f32)] = take_no_time;
  }

  Outcome run(int64_t warm_up, int64_t tokens) {
    for (int64_t i = 0; i < warm_up; ++i) run_token();
    const ExpertCacheStats before = cache_->stats();
    const double begin_ms = now_ms;
    for (int64_t i = 0; i < tokens; ++i) run_token();
    const ExpertCacheStats after = cache_->stats();
    const int64_t needed = after.needed_reads() - before.needed_reads();
    const auto count = static_cast<double>(tokens);
    return {.token_ms = (now_ms - begin_ms) / count,
            .disk_ms = static_cast<double>(needed * expert_size) / disk_bytes_per_ms / count};
  }

 private:
  void run_token() {
    routing_.next_token();
    cache_->advance(1);
    now_ms += first_attention_ms;
    read_ahead(0);
    now_ms += first_mlp_ms;
    for (int64_t layer = 0; layer < layers; ++layer) {
      now_ms += attention_ms;
      run_layer(layer);
    }
    now_ms += head_ms;
  }
  void run_layer(int64_t layer) {
    constexpr int32_t one_row[] = {0};
    std::vector<ExpertWork> works;
    for (const int32_t expert : routing_.chosen(layer)) {
      works.push_back({.expert = static_cast<int32_t>(layer * experts) + expert,
                       .rows = one_row,
                       .outputs = one_row,
                       .uses = 1});
    }
    const auto meanwhile = [&] {
      now_ms += shared_ms;
      if (layer + 1 < layers) read_ahead(layer + 1);
    };
    const ExpertStep step{
        .shape = {.hidden = 16, .width = 16, .format = BlockFormat::f32},
        .layer = {static_cast<int32_t>(layer * experts), static_cast<int32_t>(experts)},
        .works = works,
        .meanwhile = meanwhile};
    const Activations rows{input_.data(), 16, nullptr, nullptr, nullptr, 1, 16};
    ASSERT_TRUE(run_experts(*cache_, {kernels_, team_}, step, rows, scratch_, output_.data()).ok());
  }
  void read_ahead(int64_t layer) {
    if (!looks_ahead_) return;
    now_ms += guess_ms;
    for (const int32_t guess : routing_.guesses(layer)) {
      const int32_t expert = static_cast<int32_t>(layer * experts) + guess;
      if (cache_->is_absent(expert) && !cache_->read_ahead(expert)) return;
    }
  }

  const bool looks_ahead_;
  SimulatedDisk disk_;
  std::optional<ExpertCache> cache_;
  SyntheticRouting routing_{
      {.layers = layers, .experts = experts, .chosen = chosen, .text_tokens = 64}};
  KernelTable kernels_ = scalar_kernels();
  Team team_{1};
  ExpertStepScratch scratch_;
  std::vector<float> input_ = std::vector<float>(16), output_ = std::vector<float>(16);
};

// The share of the bound, and the gain over a machine that reads, then computes.
void expect_at_least(double cached, double share, double over_serial) {
  SCOPED_TRACE(testing::Message() << cached << " of the experts in memory");
  const Outcome off = Simulation(cached, false).run(100, 300);
  const Outcome on = Simulation(cached, true).run(100, 300);
  const double compute_ms = on.compute_ms(true);
  const double least_ms = least_time(on.disk_ms, compute_ms, head_ms);
  EXPECT_GE(least_ms / on.token_ms, share);
  EXPECT_GE((on.disk_ms + compute_ms) / on.token_ms, over_serial);
  EXPECT_LT(on.token_ms, off.token_ms) << "looking ahead pays";
  std::printf(
      "%4.0f %%: %.3f of the bound, %.2f over serial; disk %.0f, compute %.0f, token %.0f ms, "
      "%.0f without looking ahead\n",
      cached * 100, least_ms / on.token_ms, (on.disk_ms + compute_ms) / on.token_ms, on.disk_ms,
      compute_ms, on.token_ms, off.token_ms);
}

TEST(StreamSimulation, a_disk_that_bounds_is_kept_busy) {
  expect_at_least(0.03, 0.97, 1.10);
  expect_at_least(0.10, 0.95, 1.17);
  expect_at_least(0.25, 0.87, 1.28);
}

TEST(StreamSimulation, most_is_hidden_where_disk_and_arithmetic_balance) {
  expect_at_least(0.50, 0.75, 1.35);
  expect_at_least(0.80, 0.88, 1.20);
}

}  // namespace
}  // namespace glmd
