// A step of a model whose experts are all in memory takes nothing from the heap, once a step like
// it has run.
#include <gtest/gtest.h>

#include <numeric>

#include "experts/routing_trace.h"
#include "experts/usage_history.h"
#include "generation/sampler.h"
#include "tests/support/heap_count.h"
#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

struct Setting {
  std::string model;
  int threads;
  int64_t sequences;
  LookAhead look_ahead;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.model << ", " << setting.threads << " threads, " << setting.sequences
       << " sequences, look-ahead " << static_cast<int>(setting.look_ahead);
}

// Which parts of which steps took how often from the heap; empty where none did.
class Allocations {
 public:
  void begin_step(int64_t step) {
    step_ = step;
    last_ = heap_count().allocations;
  }
  void end(const char* what, int64_t number = -1) {
    const int64_t count = heap_count().allocations - last_;
    if (count > 0) {
      text_ += fmt::format("step {}, {}", step_, what);
      text_ += number < 0 ? fmt::format(": {}\n", count) : fmt::format(" {}: {}\n", number, count);
    }
    last_ = heap_count().allocations;
  }
  std::string take_text() { return std::exchange(text_, {}); }

 private:
  int64_t step_ = 0, last_ = 0;
  std::string text_;
};

// A model with all experts in memory, and sequences behind their prompts.
class ResidentModel {
 public:
  explicit ResidentModel(const Setting& setting)
      : container_(convert_and_open(oracle_folder(setting.model), folder_ / "container",
                                    Policy::nl4, Policy::q8,
                                    read_reference(setting.model).latent_norm_eps)),
        history_(routing_shape(container_)) {
    model = open_for(container_,
                     {.threads = setting.threads,
                      .look_ahead = setting.look_ahead,
                      .is_warm = true,
                      .observers = {&history_}},
                     setting.sequences * tokens_max);
    for (int64_t i = 0; i < setting.sequences; ++i) {
      sequences.push_back(model->new_sequence(tokens_max).value());
      std::vector<int32_t> prompt(static_cast<size_t>(40 + i));
      std::iota(prompt.begin(), prompt.end(), 1);
      const BatchPart part{.sequence = sequences.back().get(), .tokens = prompt};
      const PassPtr pass = model->begin({&part, 1}).value();
      while (!pass->is_done()) EXPECT_TRUE(pass->run_layer().ok());
      pass->commit();
    }
  }

  bool has_draft() const { return container_.checkpoint().draft_layers == 1; }

 private:
  static constexpr int64_t tokens_max = 3 * cache_block_tokens;
  TemporaryFolder folder_;
  Container container_;
  UsageHistory history_;

 public:
  std::unique_ptr<Model> model;
  std::vector<std::unique_ptr<SequenceState>> sequences;
};

class StepMemory : public testing::TestWithParam<Setting> {};

// What a client is sent is made of strings, which a step of the engine takes besides.
TEST_P(StepMemory, a_warm_decode_step_takes_nothing_from_the_heap) {
  constexpr int64_t warm_steps = 2, steps = 70;  // past a block of the cache and a look-ahead trial
  ResidentModel resident(GetParam());
  Model& model = *resident.model;
  const int64_t misses = model.expert_stats().misses;
  std::vector<int32_t> last(resident.sequences.size(), 1);
  std::vector<BatchPart> parts;
  for (size_t i = 0; i < last.size(); ++i) {
    parts.push_back(
        {.sequence = resident.sequences[i].get(), .tokens = {&last[i], 1}, .wants_logits = true});
  }
  Sampler sampler;
  Allocations allocations;
  for (int64_t step = 0; step < warm_steps + steps; ++step) {
    if (step == warm_steps) allocations.take_text();
    allocations.begin_step(step);
    PassPtr pass = model.begin(parts).value();
    allocations.end("begin");
    while (!pass->is_done()) {
      ASSERT_TRUE(pass->run_layer().ok());
      allocations.end("layer", pass->layers_done() - 1);
    }
    pass->commit();
    allocations.end("commit");
    for (size_t i = 0; i < last.size(); ++i) {
      // Greedily, and from a nucleus.
      const SamplingOptions options{.temperature = i % 2 == 0 ? 0.0 : 1.0, .top_p = 0.9, .seed = 1};
      last[i] = sampler.sample(pass->logits(static_cast<int64_t>(i)), options, step).value();
    }
    allocations.end("sampling");
    if (resident.has_draft()) {
      PassPtr draft =
          model.begin_draft(*parts[0].sequence, parts[0].tokens, pass->hidden(0)).value();
      ASSERT_TRUE(draft->run_layer().ok());
      draft->commit();
      draft.reset();
      allocations.end("draft");
    }
    pass.reset();
    allocations.end("end");
  }
  EXPECT_EQ(model.expert_stats().misses, misses) << "not all experts were in memory";
  if (!counts_heap) GTEST_SKIP() << "ran, but a sanitizer has a heap of its own";
  EXPECT_EQ(allocations.take_text(), "");
}

// Runs `ids` as one pass from an empty sequence, then the draft layer on it, where there is one.
void run_pass(Model& model, SequenceState& sequence, std::span<const int32_t> ids, bool with_draft,
              std::vector<float>& hidden) {
  sequence.truncate(0);
  const BatchPart part{.sequence = &sequence, .tokens = ids, .wants_logits = true};
  PassPtr pass = model.begin({&part, 1}).value();
  while (!pass->is_done()) ASSERT_TRUE(pass->run_layer().ok());
  std::copy(pass->hidden(0).begin(), pass->hidden(0).end(), hidden.begin());
  pass.reset();
  if (!with_draft) return;
  const std::span<const float> rows = std::span(hidden).first(ids.size() * hidden.size() / 512);
  pass = model.begin_draft(sequence, ids, rows).value();
  ASSERT_TRUE(pass->run_layer().ok());
}

class ScratchSizesOf : public testing::TestWithParam<std::tuple<std::string, Policy, int>> {};

TEST_P(ScratchSizesOf, a_model_are_what_its_passes_take_at_most) {
  if (!counts_heap) GTEST_SKIP() << "a sanitizer has a heap of its own";
  constexpr int64_t tokens_max = 640;
  const auto& [name, experts, threads] = GetParam();
  const TemporaryFolder folder;
  const Container container = convert_and_open(oracle_folder(name), folder / "container", experts,
                                               Policy::q8, read_reference(name).latent_norm_eps);
  const CheckpointConfig& shape = container.checkpoint();
  const ScratchSizes sizes = model_sizes(container, /*with_draft=*/true).value().scratch;
  const std::unique_ptr<Model> model =
      open_for(container, {.threads = threads, .is_warm = true}, tokens_max);
  const std::unique_ptr<SequenceState> sequence = model->new_sequence(tokens_max).value();
  std::vector<float> hidden(static_cast<size_t>(512 * shape.hidden_size));
  std::vector<int32_t> ids(512);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 31 % 300);

  take_heap_bytes_max();
  const int64_t before = heap_count().bytes;
  for (const int64_t rows : {1, 2, 33, 200, 511, 512}) {  // the last grows all buffers by a row
    run_pass(*model, *sequence, std::span(ids).first(static_cast<size_t>(rows)),
             shape.draft_layers == 1, hidden);
    // A draft layer has logits for every row.
    const int64_t logits = shape.draft_layers == 1 ? rows : 1;
    const int64_t said =
        sizes.bytes({.rows = rows, .logits = logits, .threads = threads, .tokens = tokens_max});
    const int64_t taken = take_heap_bytes_max() - before;
    EXPECT_LE(taken, said) << rows << " rows";
    if (rows < 512) continue;
    EXPECT_GE(taken, said / 10 * 7) << "a plan would keep too much for scratch";
  }
}

INSTANTIATE_TEST_SUITE_P(settings, ScratchSizesOf,
                         testing::Combine(testing::Values("base", "odd", "groups"),
                                          testing::Values(Policy::nl4, Policy::exact),
                                          testing::Values(1, 3)));

INSTANTIATE_TEST_SUITE_P(settings, StepMemory,
                         testing::Values(Setting{"base", 1, 1, LookAhead::off},
                                         Setting{"base", 2, 1, LookAhead::on},
                                         Setting{"base", 1, 5, LookAhead::on},
                                         Setting{"base", 2, 5, LookAhead::automatic},
                                         Setting{"odd", 2, 1, LookAhead::automatic},
                                         Setting{"groups", 2, 3, LookAhead::automatic},
                                         Setting{"groups", 3, 1, LookAhead::on}));

}  // namespace
}  // namespace glmd
