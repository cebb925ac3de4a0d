// GLM-5.2 and its siblings (`glm_moe_dsa` in transformers): the forward pass over a batch of rows,
// layer by layer. Thread: compute.
#pragma once

#include <memory>
#include <vector>

#include "model/families/families.h"
#include "model/families/glm/layer_weights.h"
#include "model/rotary.h"
#include "model/workspace.h"
#include "storage/replica_set.h"

namespace glmd {

class GlmPass;

class GlmModel : public Model {
 public:
  ~GlmModel() override;
  static Result<std::unique_ptr<Model>> open(const Container& container,
                                             const ModelOptions& options);
  static Result<ModelSizes> sizes(const Container& container, bool with_draft, KvFormat kv_format);

  const ModelShape& shape() const override { return shape_; }
  Result<std::unique_ptr<SequenceState>> new_sequence(int64_t tokens_max) override;
  Result<PassPtr> begin(std::span<const BatchPart> parts) override;
  Result<PassPtr> begin_draft(SequenceState& sequence, std::span<const int32_t> tokens,
                              std::span<const float> hidden) override;
  int64_t rows_max() const override { return options_.rows_max; }
  ExpertCacheStats expert_stats() const override { return cache_->stats(); }
  double head_seconds() const override { return head_seconds_; }
  int64_t resize_experts(int64_t arena_bytes) override { return cache_->resize(arena_bytes); }
  bool warm_up() override { return cache_->warm_up(); }
  void set_while_waiting(std::function<void()> call) override {
    cache_->set_while_waiting(std::move(call));
  }
  std::optional<PendingRead> oldest_pending_read() const override {
    return reader_.reader->oldest_pending();
  }
  bool has_locked_weights() const override { return has_locked_weights_; }
  std::string_view look_ahead_state() const override { return look_ahead_.state(); }
  std::vector<std::string> take_disk_events() override;
  std::vector<DiskStatus> disks() const override { return reader_.reader->disks(); }
  std::string reader_description() const override { return reader_.description; }

 private:
  friend class GlmPass;
  GlmModel(const ModelOptions& options, CheckpointConfig config);

  Compute compute() { return {*options_.kernels, team_}; }
  GlmPass& take_pass();

  ModelOptions options_;
  CheckpointConfig config_;
  ModelShape shape_;
  float latent_norm_eps_ = 1e-5F;
  Team team_;
  Rotary rotary_;
  DenseWeights weights_;
  bool has_locked_weights_ = false;
  Matrix embedding_{}, head_{};
  const float* norm_ = nullptr;
  std::vector<LayerWeights> layers_;  // the draft layer last, if used
  DraftWeights draft_{};
  Matrix draft_embedding_{}, draft_head_{};
  OpenedReader reader_;
  std::optional<ExpertCache> cache_;
  LookAheadSwitch look_ahead_;
  double head_seconds_ = 0;
  std::optional<CachePool> pool_;
  std::vector<std::unique_ptr<GlmPass>> passes_;  // not in use, with the buffers they grew
};

}  // namespace glmd
