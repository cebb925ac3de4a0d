// Checkpoints whose experts were thinned out, to counts that no power of two divides.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "tests/convert/tiny_checkpoint.h"
#include "tests/support/reference_model.h"

namespace glmd {
namespace {

using test::TinyCheckpoint;

TinyCheckpoint checkpoint_of(int experts, int experts_per_token) {
  TinyCheckpoint tiny = TinyCheckpoint::make("BF16", experts);
  tiny.config.set("num_experts_per_tok", Json::integer(experts_per_token));
  return tiny;
}

// The bias steers selection and nothing else.
void never_choose_from(int first, TinyCheckpoint& tiny) {
  constexpr float never = -1e6F;
  for (const char* layer : {"1", "2"}) {
    test::TinyTensor& bias =
        tiny.tensors.at(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer));
    for (size_t expert = static_cast<size_t>(first); expert * 4 < bias.bytes.size(); ++expert)
      std::memcpy(&bias.bytes[expert * 4], &never, 4);
  }
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  ASSERT_FALSE(got.empty());
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0);
}

TEST(PrunedModel, computes_as_the_whole_one_that_never_chooses_what_is_gone) {
  const struct {
    int whole, left, experts_per_token;
  } cases[] = {{4, 3, 2}, {24, 23, 8}, {256, 132, 8}, {9, 1, 1}};
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4};
  for (const auto& one : cases) {
    for (const auto& [experts, dense] :
         {std::pair(Policy::exact, Policy::exact), std::pair(Policy::nl4, Policy::nl5)}) {
      SCOPED_TRACE(fmt::format("{} of {} experts, {}", one.left, one.whole, policy_name(experts)));
      const test::TemporaryFolder folder;
      TinyCheckpoint whole = checkpoint_of(one.whole, one.experts_per_token);
      never_choose_from(one.left, whole);
      whole.write(folder / "whole");
      checkpoint_of(one.left, one.experts_per_token).write(folder / "left");
      const Container wanted =
          convert_and_open(folder / "whole", folder / "wanted", experts, dense, 1e-5);
      const Container got = convert_and_open(folder / "left", folder / "got", experts, dense, 1e-5);
      const Logits wanted_logits = logits_of(wanted, ids, {});
      for (const double arena_share : {0.0, 1.0}) {
        const Logits logits = logits_of(got, ids, {.threads = 2, .arena_share = arena_share});
        expect_same_bits(logits.main, wanted_logits.main);
        expect_same_bits(logits.draft, wanted_logits.draft);
      }
    }
  }
}

}  // namespace
}  // namespace glmd
