// A model without mathematics: the logits of a token are drawn from a hash of all tokens up to it,
// so that the right output of any session can be computed apart from any batch. Layers call a hook,
// in which tests act between layers; a poisoned token makes every pass fail that carries it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "model/model.h"
#include "platform/check.h"
#include "platform/random.h"

namespace glmd {

class ScriptedModel : public Model {
 public:
  struct Options {
    int64_t vocabulary = 64, layers = 4, context_max = 4096, rows_max = 32;
    int64_t tokens_in_pool = 1 << 30;
    uint64_t salt = 1;
  };

  ScriptedModel() : ScriptedModel(Options()) {}
  explicit ScriptedModel(const Options& options) : options_(options) {
    shape_ = {options.vocabulary, options.layers, options.context_max, 1};
  }

  const ModelShape& shape() const override { return shape_; }
  int64_t rows_max() const override { return options_.rows_max; }
  ExpertCacheStats expert_stats() const override { return expert_stats_now; }
  double head_seconds() const override { return head_seconds_now; }
  void set_while_waiting(std::function<void()> call) override { while_waiting = std::move(call); }
  std::optional<PendingRead> oldest_pending_read() const override { return pending_read; }
  std::string_view look_ahead_state() const override { return look_ahead_now; }
  // Reads under way keep some bytes for as long as a test wants.
  int64_t resize_experts(int64_t arena_bytes) override {
    resizes.push_back(arena_bytes);
    return arena_bytes + arena_bytes_in_use;
  }

  Result<std::unique_ptr<SequenceState>> new_sequence(int64_t tokens_max) override {
    if (tokens_reserved_ + tokens_max > options_.tokens_in_pool) {
      return error(ErrorKind::no_memory, "no room for {} tokens", tokens_max);
    }
    return std::unique_ptr<SequenceState>(std::make_unique<Sequence>(*this, tokens_max));
  }

  Result<PassPtr> begin(std::span<const BatchPart> parts) override {
    ++passes_begun;
    int64_t rows = 0;
    for (const BatchPart& part : parts) {
      CHECK(!part.tokens.empty());
      CHECK(live_.contains(part.sequence));
      rows += static_cast<int64_t>(part.tokens.size());
    }
    CHECK(rows <= options_.rows_max);
    rows_of_passes.push_back(rows);
    return PassPtr(new Pass(*this, parts, rows));
  }

  // What the model says after `history`.
  std::vector<float> logits_after(const std::vector<int32_t>& history) const {
    if (next_token) {
      std::vector<float> logits(static_cast<size_t>(options_.vocabulary), 0.0f);
      logits[static_cast<size_t>(next_token(history))] = 30.0f;
      return logits;
    }
    uint64_t hash = options_.salt;
    for (const int32_t token : history) {
      hash = SplitMix(hash ^ static_cast<uint64_t>(token)).next();
    }
    SplitMix random(hash);
    std::vector<float> logits;
    for (int64_t id = 0; id < options_.vocabulary; ++id) {
      logits.push_back(static_cast<float>(unit_interval(random.next()) * 8));
    }
    return logits;
  }

  int64_t live_sequences() const { return static_cast<int64_t>(live_.size()); }

  // Called at the end of each layer, with the number of layers done and the rows the pass began
  // with.
  std::function<void(int64_t layers_done, int64_t rows)> on_layer;
  ExpertCacheStats expert_stats_now;
  double head_seconds_now = 0;
  std::function<void()> while_waiting;
  std::optional<PendingRead> pending_read;
  std::string_view look_ahead_now;
  std::function<int32_t(const std::vector<int32_t>& history)> next_token;
  std::optional<int32_t> poison;
  int64_t failures_left = 0;  // passes that fail whatever they carry
  int64_t passes_begun = 0;
  std::vector<int64_t> resizes;
  int64_t arena_bytes_in_use = 0;
  std::vector<int64_t> rows_of_passes;

 private:
  class Sequence : public SequenceState {
   public:
    Sequence(ScriptedModel& model, int64_t tokens_max) : model_(model), tokens_max_(tokens_max) {
      model_.live_.insert(this);
      model_.tokens_reserved_ += tokens_max_;
    }
    ~Sequence() override {
      model_.live_.erase(this);
      model_.tokens_reserved_ -= tokens_max_;
    }
    int64_t length() const override { return static_cast<int64_t>(history.size()); }
    void truncate(int64_t length) override { history.resize(static_cast<size_t>(length)); }
    void append(const std::vector<int32_t>& tokens) {
      history.insert(history.end(), tokens.begin(), tokens.end());
      CHECK(length() <= tokens_max_);
    }

    std::vector<int32_t> history;

   private:
    ScriptedModel& model_;
    int64_t tokens_max_;
  };

  class Pass : public ForwardPass {
   public:
    Pass(ScriptedModel& model, std::span<const BatchPart> parts, int64_t rows)
        : model_(model), logits_(parts.size()), rows_(rows) {
      for (const BatchPart& part : parts) {
        parts_.push_back({.sequence = part.sequence,
                          .tokens = {part.tokens.begin(), part.tokens.end()},
                          .wants_logits = part.wants_logits});
      }
    }

    bool is_done() const override { return layers_done_ == model_.options_.layers; }
    int64_t layers_done() const override { return layers_done_; }
    Result<void> run_layer() override {
      CHECK(!is_done());
      for (const Part& part : parts_) {
        if (part.sequence == nullptr) continue;
        CHECK(model_.live_.contains(part.sequence));
        const bool is_poisoned =
            model_.poison && std::ranges::count(part.tokens, *model_.poison) > 0;
        if (is_poisoned && layers_done_ == 1)
          return error(ErrorKind::io, "layer 1: expert 7: poison");
      }
      if (model_.failures_left > 0) {
        --model_.failures_left;
        return error(ErrorKind::io, "layer {}: expert 3: lost", layers_done_);
      }
      ++layers_done_;
      if (model_.on_layer) model_.on_layer(layers_done_, rows_);
      return {};
    }
    void drop(int64_t part) override { parts_[static_cast<size_t>(part)].sequence = nullptr; }
    void commit() override {
      CHECK(is_done());
      for (size_t index = 0; index < parts_.size(); ++index) {
        if (parts_[index].sequence == nullptr) continue;
        auto& sequence = static_cast<Sequence&>(*parts_[index].sequence);
        sequence.append(parts_[index].tokens);
        logits_[index] = model_.logits_after(sequence.history);
      }
    }
    std::span<const float> logits(int64_t part) const override {
      CHECK(parts_[static_cast<size_t>(part)].wants_logits);
      return logits_[static_cast<size_t>(part)];
    }

   private:
    struct Part {
      SequenceState* sequence = nullptr;
      std::vector<int32_t> tokens;
      bool wants_logits = false;
    };

    ScriptedModel& model_;
    std::vector<Part> parts_;
    std::vector<std::vector<float>> logits_;
    int64_t rows_;
    int64_t layers_done_ = 0;
  };

  Options options_;
  ModelShape shape_;
  std::set<const SequenceState*> live_;
  int64_t tokens_reserved_ = 0;
};

}  // namespace glmd
