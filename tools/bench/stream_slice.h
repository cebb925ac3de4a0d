// What the streaming bench runs: a model's experts, and where the tokens of its texts go. Weights
// are random and would not route like trained ones, so choices and guesses are made up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/router.h"
#include "storage/container.h"

namespace glmd {

constexpr int64_t text_tokens = 64;  // then another prompt begins

// What the bench needs to know of a model.
struct Slice {
  int64_t experts = 0, chosen = 0;
  std::vector<int64_t> layers;         // that have experts
  std::vector<const Tensor*> tensors;  // of these, layer by layer; the container's
  int64_t bytes = 0;                   // of all experts

  double token_experts() const { return static_cast<double>(std::ssize(layers) * chosen); }
  int64_t expert_bytes() const { return bytes / std::ssize(tensors); }
  // By which an arena is filled before the run, alike in all layers, so that none of its slots is
  // touched for the first time while it is measured; worth so little that the run decides what
  // stays.
  std::vector<float> usage_prior() const;
};

Result<Slice> slice_of(const Container& container);

// Choices and guesses of every token of the run, made before it. Token `i` of the run is position
// i % text_tokens of its text.
class RoutingTable : public RoutingSource {
 public:
  RoutingTable(const Slice& slice, int64_t tokens, double recall);
  // Every token goes to the same experts, which stay in memory.
  explicit RoutingTable(const Slice& slice) : slice_(slice), is_resident_(true) {}

  void begin_text(int64_t first_token) { first_token_ = first_token; }

  // Experts of all layers, numbered layer by layer.
  std::vector<int32_t> experts_of(int64_t token, int64_t layer_index) const;

  void choose(int64_t layer, int64_t position, std::span<Choice> choices) override {
    fill(chosen_, layer, position, choices);
  }
  void guess(int64_t layer, int64_t position, std::span<Choice> choices) override {
    fill(guesses_, layer, position, choices);
  }

 private:
  int64_t index_of(int64_t token, int64_t layer_index) const;
  void fill(const std::vector<int32_t>& experts, int64_t layer, int64_t position,
            std::span<Choice> choices) const;

  const Slice& slice_;
  bool is_resident_ = false;
  int64_t first_token_ = 0;
  std::vector<int32_t> chosen_, guesses_;  // [tokens][layers][chosen]
};

}  // namespace glmd
