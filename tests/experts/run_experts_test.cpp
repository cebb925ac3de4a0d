// The experts of a layer, computed while reads are delayed, reordered, shortened, failed, flipped
// and cancelled: the same outputs, or an error that says where.
#include "experts/run_experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "faulty_reader.h"
#include "storage/container.h"
#include "storage/manifest.h"

namespace glmd {
namespace {

constexpr int64_t hidden = 16, width = 8, layers = 2, layer_experts = 16;
constexpr int32_t experts = layers * layer_experts;
constexpr int64_t size_bytes = expert_bytes(BlockFormat::f32, width, hidden);

// Two layers of small experts as a file.
std::vector<uint8_t> make_content() {
  std::vector<uint8_t> content(static_cast<size_t>(experts * size_bytes));
  std::mt19937 random(1);
  for (int32_t expert = 0; expert < experts; ++expert) {
    auto* values = reinterpret_cast<float*>(content.data() + expert * size_bytes);
    for (int64_t i = 0; i < size_bytes / 4; ++i) {
      values[i] = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    }
  }
  return content;
}

std::vector<ExpertExtent> extents_of(const std::vector<uint8_t>& content) {
  std::vector<ExpertExtent> extents;
  for (int32_t i = 0; i < experts; ++i) {
    extents.push_back(
        {.file = 0,
         .offset = i * size_bytes,
         .bytes = size_bytes,
         .hash = hash_bytes({content.data() + i * size_bytes, static_cast<size_t>(size_bytes)}),
         .name = "expert " + std::to_string(i),
         .file_name = "experts.safetensors"});
  }
  return extents;
}

struct Work {
  int32_t expert = 0;
  std::vector<int32_t> rows, outputs;
};

struct Step {
  int64_t layer = 0;
  std::vector<float> input;
  std::vector<Work> works;
  std::vector<int32_t> guesses;  // for the other layer
  Pace pace = Pace::step;
  int64_t rows = 0;
};

Step random_step(std::mt19937& random, int64_t layer) {
  Step step{.layer = layer,
            .input = {},
            .works = {},
            .guesses = {},
            .rows = 1 + static_cast<int64_t>(random() % 4)};
  for (int64_t i = 0; i < step.rows * hidden; ++i) {
    step.input.push_back(static_cast<float>(random() % 2001) / 1000.0F - 1.0F);
  }
  const size_t count = 1 + random() % layer_experts;
  int32_t output = 0;
  for (int32_t expert = 0; expert < layer_experts && step.works.size() < count; ++expert) {
    if (random() % 4 == 0) continue;
    Work work{
        .expert = static_cast<int32_t>(layer * layer_experts) + expert, .rows = {}, .outputs = {}};
    for (int32_t row = 0; row < step.rows; ++row) {
      if (!work.rows.empty() && random() % 2 == 0) continue;
      work.rows.push_back(row);
      work.outputs.push_back(output++);
    }
    step.works.push_back(std::move(work));
  }
  for (int i = 0; i < 4; ++i) {
    step.guesses.push_back(
        static_cast<int32_t>((1 - layer) * layer_experts + random() % layer_experts));
  }
  if (random() % 4 == 0) step.pace = Pace::stream;
  return step;
}

Result<std::vector<float>> run(ExpertCache& cache, const Step& step) {
  Team team(1);
  ExpertStepScratch scratch;
  std::vector<float> outputs(64 * hidden, 0.0F);
  std::vector<ExpertWork> works;
  for (const Work& work : step.works) works.push_back({work.expert, work.rows, work.outputs, 1});
  const Activations input{.values = step.input.data(),
                          .value_stride = hidden,
                          .codes = nullptr,
                          .scales = nullptr,
                          .sums = nullptr,
                          .row_count = step.rows,
                          .columns = hidden};
  const auto read_ahead = [&] {
    for (const int32_t expert : step.guesses) cache.read_ahead(expert);
  };
  const ExpertStep all{.shape = {.hidden = hidden, .width = width, .format = BlockFormat::f32},
                       .layer = {static_cast<int32_t>(step.layer * layer_experts), layer_experts},
                       .pace = step.pace,
                       .works = works,
                       .meanwhile = read_ahead};
  TRY(run_experts(cache, {scalar_kernels(), team}, all, input, scratch, outputs.data()));
  return outputs;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Whatever the reader does. A failed step is tried again as a session would be: by then the faults
// may be over.
TEST(RunExperts, faults_end_in_the_same_outputs_or_an_error_that_says_where) {
  const std::vector<uint8_t> content = make_content();
  const std::vector<ExpertExtent> extents = extents_of(content);
  FaultyReader sound(content, 1, 0);
  ExpertCache whole =
      ExpertCache::create(extents, experts * size_bytes, sound, Verify::always).value();
  int64_t failed_count = 0, ahead_count = 0;
  for (uint32_t seed = 1; seed <= 2500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    FaultyReader reader(content, seed, seed % 5 == 0 ? 0.0 : 0.05 * (seed % 10));
    reader.hang_share = seed % 7 == 0 ? 0.2 : 0;
    const int64_t slots = seed % 3 == 0 ? 2 : 8 + random() % 24;
    ExpertCache cache =
        ExpertCache::create(extents, slots * size_bytes, reader, Verify::always).value();
    cache.allow_read_ahead(seed % 4 != 0);
    for (int64_t i = 0; i < 6; ++i) {
      if (i % layers == 0) cache.advance(1);
      const Step step = random_step(random, i % layers);
      const Result<std::vector<float>> got = run(cache, step);
      ASSERT_EQ(cache.loading_count(), 0);
      if (got.ok()) {
        ASSERT_EQ(got.value(), run(whole, step).value());
        continue;
      }
      ++failed_count;
      const std::string& message = got.error().message;
      EXPECT_TRUE(contains(message, "expert ")) << message;
      EXPECT_TRUE(contains(message, "experts.safetensors: ")) << message;
      EXPECT_TRUE(contains(message, " at ")) << message;
      EXPECT_TRUE(contains(message, "wanted ") || contains(message, "error")) << message;
      EXPECT_GT(cache.stats().rereads, 0);
    }
    // No slot and no pin is lost: every one of them can be pinned.
    reader.hang_share = 0;
    ExpertCacheStats stats = cache.stats();
    ahead_count += stats.ahead_issued;
    while (reader.outstanding() > 0) cache.poll_arrival();
    std::vector<ExpertLease> pins;
    std::vector<ExpertWant> wants = {{0, 1}};
    cache.begin_step({1, experts}, wants);  // ends all guesses
    while (reader.outstanding() > 0) cache.poll_arrival();
    for (int32_t expert = 1; expert < experts; ++expert) wants.push_back({expert, 1});
    cache.begin_step({0, experts}, wants);
    for (int32_t expert = 0, tries = 0; expert < experts && tries < 10000; ++tries) {
      if (auto lease = cache.find(expert)) {
        pins.push_back(std::move(*lease));
      } else if (!cache.start_load(expert)) {
        break;
      } else {
        ExpertCache::Arrival arrival = cache.wait_for_arrival();
        if (!arrival.lease.ok()) continue;  // again
        pins.push_back(std::move(arrival.lease).value());
      }
      ++expert;
    }
    ASSERT_EQ(pins.size(), static_cast<size_t>(std::min<int64_t>(slots, experts)));
    stats = cache.stats();
    ASSERT_EQ(stats.ahead_issued,
              stats.ahead_used + stats.ahead_late + stats.ahead_wasted + stats.ahead_dropped);
  }
  EXPECT_GT(failed_count, 100);
  EXPECT_GT(ahead_count, 1000);
}

TEST(RunExperts, a_corrupt_expert_is_read_once_more_then_reported_with_its_checksum) {
  std::vector<uint8_t> content = make_content();
  const std::vector<ExpertExtent> extents = extents_of(content);
  content[static_cast<size_t>(5 * size_bytes)] ^= 1;
  FaultyReader reader(content, 1, 0);
  ExpertCache cache =
      ExpertCache::create(extents, 4 * size_bytes, reader, Verify::first_read).value();
  Step step{.input = std::vector<float>(hidden, 1.0F),
            .works = {{.expert = 5, .rows = {0}, .outputs = {0}}},
            .guesses = {},
            .rows = 1};
  const Result<std::vector<float>> got = run(cache, step);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().kind, ErrorKind::corrupt);
  EXPECT_TRUE(contains(got.error().message,
                       fmt::format("expert 5: experts.safetensors: checksum of {} bytes at {}: "
                                   "wanted {:016x}, got ",
                                   size_bytes, 5 * size_bytes, extents[5].hash)))
      << got.error().message;
  EXPECT_EQ(cache.stats().rereads, 1);
  EXPECT_EQ(reader.submitted.size(), 2U);
  step.works[0].expert = 6;
  EXPECT_TRUE(run(cache, step).ok()) << "the others go on";
}

TEST(RunExperts, what_else_there_is_to_do_is_done_while_experts_load) {
  const std::vector<uint8_t> content = make_content();
  FaultyReader reader(content, 1, 0);
  ExpertCache cache =
      ExpertCache::create(extents_of(content), 4 * size_bytes, reader, Verify::always).value();
  Team team(1);
  ExpertStepScratch scratch;
  const std::vector<float> input(hidden, 1.0F);
  std::vector<float> outputs(2 * hidden);
  const std::vector<int32_t> places = {0, 1};
  const std::span<const int32_t> first = std::span(places).first(1);
  const std::vector<ExpertWork> works = {
      {.expert = 3, .rows = first, .outputs = first, .uses = 1},
      {.expert = 4, .rows = first, .outputs = std::span(places).last(1), .uses = 1}};
  int64_t under_way = 0, calls = 0;
  const auto look = [&] {
    ++calls;
    under_way = reader.outstanding();
  };
  const ExpertStep step{.shape = {.hidden = hidden, .width = width, .format = BlockFormat::f32},
                        .layer = {0, layer_experts},
                        .works = works,
                        .meanwhile = look};
  const Activations rows{input.data(), hidden, nullptr, nullptr, nullptr, 1, hidden};
  ASSERT_TRUE(
      run_experts(cache, {scalar_kernels(), team}, step, rows, scratch, outputs.data()).ok());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(under_way, 2);
}

}  // namespace
}  // namespace glmd
