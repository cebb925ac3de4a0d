// Routing choices that look like those of GLM-5.2, for measuring caches without the model: how
// often experts come back, after how long, and how well the next layer can be guessed. A score is a
// fixed preference, plus a topic that drifts over hundreds of tokens, plus a part that lasts a few
// tokens and is sometimes drawn anew at once (a new word); the best scores are chosen. The same
// options give the same choices on every machine: draws are integers, and of floating point only
// sums, products and square roots are used. Thread: any one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/random.h"

namespace glmd {

// The defaults are GLM-5.2: one text. Against what was published of its routing, and what is made
// (tests/experts/synthetic_routing_test.cpp holds both):
//   same as the token before                  41.3 %
//   optimal cache of 1/2/4/8 slots a layer    11 / 20.8 / 36.5 / 54 % hits
//   LRU of 26 slots a layer                   51 to 55 %
//   touched by 75 unrelated tokens            237 of 256
struct SyntheticRoutingOptions {
  int64_t layers = 75;  // that have experts
  int64_t experts = 256;
  int64_t chosen = 8;

  // Standard deviations of the parts of a score; that of the short-lived part is 1.
  double preference_spread = 0.1;
  double topic_spread = 0.38;
  double topic_tokens = 1200;    // after these a topic has drifted to a correlation of 1/e
  double token_memory = 0.85;    // correlation of the short-lived part from one token to the next
  double renewal_share = 0.225;  // of tokens that draw their layer's short-lived part anew

  // Every `text_tokens` another text begins, with the next of `topics` starting topics; 0: never.
  int64_t text_tokens = 0;
  int64_t topics = 16;

  // Share of a layer's choices that were guessed one layer before; 0.60 to 0.88. Published: 0.716
  // (router on the earlier state), 0.767 (with the shared expert added). The guess of first rank is
  // right 93 times of 100, that of last rank 55 times.
  double guess_recall = 0.767;

  uint64_t seed = 1;       // of the model: preferences and topics
  uint64_t text_seed = 1;  // of the text: sequences of a batch differ in nothing else
};

class SyntheticRouting {
 public:
  explicit SyntheticRouting(const SyntheticRoutingOptions& options);

  // Moves every layer on by one token. Call it before the first look.
  void next_token();

  // Experts 0 to experts - 1 of this layer's router, best score first: [chosen].
  std::span<const int32_t> chosen(int64_t layer) const;
  // What the layer before would have guessed of them, surest first: [chosen].
  std::span<const int32_t> guesses(int64_t layer) const;

 private:
  struct Layer {
    explicit Layer(uint64_t seed) : random(seed) {}
    SplitMix random;
    std::vector<float> preference, topic, token;  // [experts], spreads not yet applied
  };

  void begin_text(int64_t layer);
  void move_scores(Layer& layer);
  void choose(int64_t layer);
  void guess(int64_t layer);

  SyntheticRoutingOptions options_;
  std::vector<Layer> layers_;
  std::vector<double> precision_;  // [chosen]: that the guess of this rank is right
  std::vector<int32_t> chosen_;    // [layers][chosen]
  std::vector<int32_t> guesses_;   // [layers][chosen]
  std::vector<float> scores_;      // [experts], scratch
  std::vector<int32_t> by_score_;  // [experts], scratch: the first 2 * chosen are in order
  int64_t tokens_ = 0;
};

}  // namespace glmd
