#include "model/families/glm/glm.h"

#include <algorithm>
#include <cstring>

#include "experts/usage_history.h"
#include "model/layers/mixture_of_experts.h"
#include "model/layers/mla_attention.h"

namespace glmd {
namespace {

// Rotary keys stay f16: unlike latents they pass no norm, and are a ninth of a token.
CacheLayout cache_layout(const CheckpointConfig& config, bool is_reference, bool with_draft,
                         KvFormat format) {
  CacheLayout layout;
  layout.layers = config.layers + (with_draft ? 1 : 0);
  const bool is_coded = format == KvFormat::int8 && !is_reference;
  layout.key = {.width = config.kv_lora_rank + config.qk_rope_head_dim,
                .is_f32 = is_reference,
                .coded = is_coded ? config.kv_lora_rank : 0};
  layout.index_key = {.width = config.index_head_dim, .is_f32 = is_reference};
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    layout.index_slot.push_back(config.indexer_full[layer] ? layout.index_layers++ : -1);
  }
  return layout;
}

// The routed experts in the order of the cache: layer by layer, expert by expert.
struct ExpertTable {
  std::vector<ExpertExtent> extents;
  std::vector<int32_t> first;       // per layer, -1 where dense
  std::vector<ExpertShape> shapes;  // per layer
};

ExpertTable expert_table(const Container& container, const CheckpointConfig& config,
                         int64_t layers) {
  ExpertTable table;
  for (int64_t layer = 0; layer < layers; ++layer) {
    table.first.push_back(-1);
    table.shapes.emplace_back();
    if (!config.is_sparse[layer]) continue;
    table.first.back() = static_cast<int32_t>(table.extents.size());
    for (int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
      const std::string name = fmt::format("layers.{}.experts.{}", layer, expert);
      const Tensor* tensor = container.find(name);
      CHECK(tensor != nullptr);  // Container::open saw them all
      table.shapes.back() = {
          .hidden = tensor->columns, .width = tensor->rows, .format = tensor->format};
      table.extents.push_back({.file = tensor->file,
                               .offset = tensor->offset,
                               .bytes = tensor->bytes,
                               .hash = tensor->hash,
                               .name = fmt::format("expert {}", expert),
                               .file_name = container.files()[tensor->file]});
    }
  }
  return table;
}

}  // namespace

// One pass, and when it has ended the next: it keeps its buffers. Rows of a part are consecutive;
// dropping a part closes the gap.
class GlmPass : public ForwardPass {
 public:
  explicit GlmPass(GlmModel& model) : model_(model) { workspace_.times = model.options_.times; }

  bool is_done() const override { return is_done_ || rows_.empty(); }
  int64_t layers_done() const override { return layers_done_; }
  Result<void> run_layer() override;
  void drop(int64_t part) override;
  void commit() override;
  std::span<const float> logits(int64_t part) const override;
  std::span<const float> hidden(int64_t part) const override;

  void start(std::span<const BatchPart> parts);
  void start_draft(GlmSequence& sequence, std::span<const int32_t> tokens,
                   std::span<const float> hidden);

 protected:
  void end() override { model_.passes_.emplace_back(this); }

 private:
  struct Part {
    GlmSequence* sequence = nullptr;
    int64_t first_row = 0, row_count = 0;
    bool wants_logits = false, wants_all_logits = false;
    int64_t first_logits = 0, logits_count = 0;
  };

  void reset(bool is_draft);
  Pace pace() const { return pace_of(std::ssize(rows_)); }
  bool is_stream() const { return pace() == Pace::stream; }
  void add_rows(GlmSequence& sequence, int64_t first_position, int64_t count);
  void fill_angles();
  void norm_rows(const float* weight, float* out);  // of the residual stream
  void add_update();
  Result<void> run_layer_body(int64_t layer);
  void tell_observers(int64_t layer);
  RoutedLayer routed_layer(int64_t layer) const;
  Result<void> finish(const float* norm, const Matrix& head);

  GlmModel& model_;
  Workspace workspace_;
  std::vector<Part> parts_;
  std::vector<PassRow> rows_;
  int64_t layers_done_ = 0;
  bool is_draft_ = false, is_done_ = false;
  bool looks_ahead_ = false;
  int64_t busy_ns_ = 0, reads_ = 0;  // of the layers run so far; experts that had to be read
};

void GlmPass::reset(bool is_draft) {
  parts_.clear();
  rows_.clear();
  layers_done_ = busy_ns_ = reads_ = 0;
  is_draft_ = is_draft;
  is_done_ = looks_ahead_ = false;
}

void GlmPass::add_rows(GlmSequence& sequence, int64_t first_position, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    rows_.push_back({&sequence, first_position + i, static_cast<int64_t>(parts_.size()) - 1});
  }
}

void GlmPass::fill_angles() {
  const int64_t pairs = model_.rotary_.pairs();
  const auto count = static_cast<int64_t>(rows_.size());
  float* cos = grown(workspace_.cos, count * pairs);
  float* sin = grown(workspace_.sin, count * pairs);
  model_.team_.run(count, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      model_.rotary_.fill(rows_[row].position, cos + row * pairs, sin + row * pairs);
    }
  });
}

void GlmPass::start(std::span<const BatchPart> parts) {
  reset(/*is_draft=*/false);
  int64_t longest_part = 0;
  for (const BatchPart& part : parts) {
    auto& sequence = static_cast<GlmSequence&>(*part.sequence);
    const auto count = static_cast<int64_t>(part.tokens.size());
    parts_.push_back({.sequence = &sequence,
                      .first_row = static_cast<int64_t>(rows_.size()),
                      .row_count = count,
                      .wants_logits = part.wants_logits,
                      .wants_all_logits = part.wants_all_logits});
    add_rows(sequence, sequence.length(), count);
    longest_part = std::max(longest_part, count);
  }
  model_.cache_->advance(longest_part);
  const int64_t width = model_.config_.hidden_size;
  const Matrix& embedding = model_.embedding_;
  float* row = grown(workspace_.hidden, static_cast<int64_t>(rows_.size()) * width);
  const int64_t row_bytes = embedding_row_bytes(embedding.format, embedding.columns);
  const auto kernel = model_.options_.kernels->embedding_row[static_cast<int>(embedding.format)];
  for (const BatchPart& part : parts) {
    for (const int32_t token : part.tokens) {
      kernel(embedding.data + token * row_bytes, width, row);
      row += width;
    }
  }
  fill_angles();
  looks_ahead_ =
      is_stream() ? model_.options_.look_ahead != LookAhead::off : model_.look_ahead_.is_on();
}

void GlmPass::start_draft(GlmSequence& sequence, std::span<const int32_t> tokens,
                          std::span<const float> target_hidden) {
  reset(/*is_draft=*/true);
  const auto count = static_cast<int64_t>(tokens.size());
  parts_.push_back({.sequence = &sequence,
                    .first_row = 0,
                    .row_count = count,
                    .wants_logits = true,
                    .wants_all_logits = true});
  add_rows(sequence, sequence.draft_length(), count);
  fill_angles();

  // u = W_eh [norm(embedding) | norm(hidden)]
  const CheckpointConfig& config = model_.config_;
  const KernelTable& kernels = *model_.options_.kernels;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const int64_t width = config.hidden_size;
  float* joined = grown(workspace_.draft_input, count * 2 * width);
  const Matrix& embedding = model_.draft_embedding_;
  const int64_t row_bytes = embedding_row_bytes(embedding.format, embedding.columns);
  for (int64_t row = 0; row < count; ++row) {
    float* left = joined + row * 2 * width;
    kernels.embedding_row[static_cast<int>(embedding.format)](
        embedding.data + tokens[row] * row_bytes, width, left);
    kernels.rms_norm(left, model_.draft_.embedding_norm, width, eps, left);
    kernels.rms_norm(target_hidden.data() + row * width, model_.draft_.hidden_norm, width, eps,
                     left + width);
  }
  workspace_.draft_rows.set(joined, 2 * width, count, 2 * width);
  multiply(model_.compute(), model_.draft_.eh_proj, workspace_.draft_rows,
           grown(workspace_.hidden, count * width), width);
}

void GlmPass::norm_rows(const float* weight, float* out) {
  const int64_t width = model_.config_.hidden_size;
  const auto eps = static_cast<float>(model_.config_.rms_norm_eps);
  const KernelTable& kernels = *model_.options_.kernels;
  const float* hidden = workspace_.hidden.data();
  model_.team_.run(static_cast<int64_t>(rows_.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernels.rms_norm(hidden + row * width, weight, width, eps, out + row * width);
    }
  });
}

void GlmPass::add_update() {
  const int64_t width = model_.config_.hidden_size;
  float* hidden = workspace_.hidden.data();
  const float* update = workspace_.update.data();
  model_.team_.run(static_cast<int64_t>(rows_.size()), 1, [&](int64_t begin, int64_t end, int) {
    model_.options_.kernels->add_scaled(hidden + begin * width, update + begin * width, 1.0F,
                                        (end - begin) * width);
  });
}

Result<void> GlmPass::run_layer() {
  CHECK(!is_done());
  const int64_t layer = is_draft_ ? model_.config_.layers : layers_done_;
  const int64_t begin_ns = SteadyClock().now_ns();
  TRY_CONTEXT(run_layer_body(layer), fmt::format("layer {}", layer));
  busy_ns_ += SteadyClock().now_ns() - begin_ns;
  ++layers_done_;
  if (model_.layers_[layer].routed && !model_.options_.observers.empty()) tell_observers(layer);
  if (is_draft_) {
    TRY(finish(model_.draft_.head_norm, model_.draft_head_));
  } else if (layers_done_ == model_.config_.layers) {
    TRY(finish(model_.norm_, model_.head_));
  }
  return {};
}

Result<void> GlmPass::run_layer_body(int64_t layer) {
  Workspace& workspace = workspace_;
  const CheckpointConfig& config = model_.config_;
  const LayerWeights& weights = model_.layers_[layer];
  const Compute compute = model_.compute();
  const auto row_count = static_cast<int64_t>(rows_.size());
  const int64_t width = config.hidden_size, count = row_count * width;
  StepTimes* times = workspace.times;
  float* normed = grown(workspace.normed, count);

  norm_rows(weights.input_norm, normed);
  workspace.normed_rows.set(normed, width, row_count, width);
  mark(times, StepPart::rest);
  run_attention(compute, config, model_.latent_norm_eps_, weights, layer, model_.pool_->layout(),
                rows_, workspace);

  add_update();
  norm_rows(weights.post_attention_norm, normed);
  workspace.normed_rows.set(normed, width, row_count, width);
  mark(times, StepPart::rest);
  const RoutedLayer routed = routed_layer(layer);
  if (weights.routed) {
    const int64_t reads_before = model_.cache_->needed_reads();
    TRY(run_mixture_of_experts(compute, config, routed, *model_.cache_, rows_, workspace));
    reads_ += model_.cache_->needed_reads() - reads_before;
  } else {
    if (routed.next != nullptr) {
      read_ahead(compute, config, routed, *model_.cache_, rows_, nullptr, workspace);
    }
    const FeedForwardWeights& mlp = weights.feed_forward;
    const FeedForward dense{.gate_up = mlp.gate_up, .down = mlp.down, .rows = {}, .outputs = {}};
    run_feed_forward(compute, {&dense, 1},
                     workspace.normed_rows.for_format(compute, mlp.gate_up.format),
                     workspace.experts.feed_forward, grown(workspace.update, count), width);
    mark(times, StepPart::dense_mlp);
  }
  add_update();
  mark(times, StepPart::rest);
  return {};
}

void GlmPass::tell_observers(int64_t layer) {
  std::vector<uint32_t>& positions = workspace_.positions;
  positions.clear();
  for (const PassRow& row : rows_) positions.push_back(static_cast<uint32_t>(row.position));
  const int64_t count = std::ssize(rows_) * model_.config_.experts_per_token;
  std::vector<uint16_t>& experts = workspace_.routed;
  experts.clear();
  for (int64_t i = 0; i < count; ++i) {
    experts.push_back(static_cast<uint16_t>(workspace_.choices[i].expert));
  }
  for (RoutingObserver* observer : model_.options_.observers) {
    observer->routed(
        {.layer = static_cast<int32_t>(layer), .positions = positions, .experts = experts});
  }
}

RoutedLayer GlmPass::routed_layer(int64_t layer) const {
  const LayerWeights* next = nullptr;
  if (looks_ahead_ && layer + 1 < model_.config_.layers && model_.layers_[layer + 1].routed) {
    next = &model_.layers_[layer + 1];
  }
  return {.layer = layer,
          .weights = model_.layers_[layer],
          .next = next,
          .pace = pace(),
          .routing = model_.options_.routing};
}

// The last norm for all rows, the output head for those that want logits.
Result<void> GlmPass::finish(const float* norm, const Matrix& head) {
  const int64_t width = model_.config_.hidden_size, vocabulary = model_.config_.vocabulary;
  Workspace& workspace = workspace_;
  float* final_hidden = grown(workspace.final_hidden, static_cast<int64_t>(rows_.size()) * width);
  norm_rows(norm, final_hidden);

  std::vector<int64_t>& wanted = workspace.wanted;
  wanted.clear();
  for (Part& part : parts_) {
    part.first_logits = static_cast<int64_t>(wanted.size());
    const int64_t skipped = part.wants_all_logits ? 0
                            : part.wants_logits   ? part.row_count - 1
                                                  : part.row_count;
    for (int64_t row = std::max<int64_t>(0, skipped); row < part.row_count; ++row) {
      wanted.push_back(part.first_row + row);
    }
    part.logits_count = static_cast<int64_t>(wanted.size()) - part.first_logits;
  }
  const auto wanted_count = static_cast<int64_t>(wanted.size());
  float* packed = grown(workspace.normed, wanted_count * width);
  for (int64_t i = 0; i < wanted_count; ++i) {
    std::memcpy(packed + i * width, final_hidden + wanted[i] * width,
                static_cast<size_t>(width) * sizeof(float));
  }
  float* logits = grown(workspace.logits, wanted_count * vocabulary);
  mark(workspace.times, StepPart::rest);
  const int64_t begin_ns = SteadyClock().now_ns();
  if (wanted_count > 0) {
    workspace.normed_rows.set(packed, width, wanted_count, width);
    multiply(model_.compute(), head, workspace.normed_rows, logits, vocabulary);
  }
  for (int64_t i = 0; i < wanted_count; ++i) {
    if (model_.options_.kernels->find_largest(logits + i * vocabulary, vocabulary) < 0) {
      return error(ErrorKind::internal, "output head: a logit is not finite");
    }
  }
  mark(workspace.times, StepPart::head);
  model_.head_seconds_ += static_cast<double>(SteadyClock().now_ns() - begin_ns) * 1e-9;
  is_done_ = true;
  return {};
}

void GlmPass::drop(int64_t index) {
  Part& part = parts_[index];
  part.sequence = nullptr;  // it may be gone from now on
  if (part.row_count == 0 || is_done_) return;
  const int64_t width = model_.config_.hidden_size, pairs = model_.rotary_.pairs();
  const int64_t topk = model_.config_.index_topk;
  const int64_t begin = part.first_row, end = begin + part.row_count;
  const auto close_gap = [&](auto& buffer, int64_t stride) {
    const auto rows = static_cast<int64_t>(rows_.size());
    if (static_cast<int64_t>(buffer.size()) < rows * stride) return;  // not in use yet
    std::copy(buffer.begin() + end * stride, buffer.begin() + rows * stride,
              buffer.begin() + begin * stride);
  };
  close_gap(workspace_.hidden, width);
  close_gap(workspace_.cos, pairs);
  close_gap(workspace_.sin, pairs);
  close_gap(workspace_.selected, topk);
  close_gap(workspace_.selected_count, 1);
  rows_.erase(rows_.begin() + begin, rows_.begin() + end);
  for (Part& other : parts_) {
    if (other.first_row >= end) other.first_row -= part.row_count;
  }
  part.row_count = 0;
}

void GlmPass::commit() {
  CHECK(is_done());
  if (!is_draft_ && !is_stream()) {
    model_.look_ahead_.add_pass(static_cast<double>(busy_ns_) * 1e-9, reads_);
  }
  for (const Part& part : parts_) {
    if (part.sequence == nullptr) continue;
    if (is_draft_) {
      part.sequence->extend_draft(part.row_count);
    } else {
      part.sequence->extend(part.row_count);
    }
  }
}

std::span<const float> GlmPass::logits(int64_t index) const {
  const Part& part = parts_[index];
  const int64_t vocabulary = model_.config_.vocabulary;
  return {workspace_.logits.data() + part.first_logits * vocabulary,
          static_cast<size_t>(part.logits_count * vocabulary)};
}

std::span<const float> GlmPass::hidden(int64_t index) const {
  const Part& part = parts_[index];
  const int64_t width = model_.config_.hidden_size;
  return {workspace_.final_hidden.data() + part.first_row * width,
          static_cast<size_t>(part.row_count * width)};
}

GlmModel::~GlmModel() = default;

GlmModel::GlmModel(const ModelOptions& options, CheckpointConfig config)
    : options_(options),
      config_(std::move(config)),
      team_(options.threads, options.processors),
      rotary_(config_.rope_theta, config_.qk_rope_head_dim),
      look_ahead_(options.look_ahead) {}

Result<std::unique_ptr<Model>> GlmModel::open(const Container& container,
                                              const ModelOptions& options) {
  std::unique_ptr<GlmModel> model(new GlmModel(options, container.checkpoint()));
  const CheckpointConfig& shape = model->config_;
  const bool with_draft = options.with_draft && container.checkpoint().draft_layers == 1;
  CacheLayout layout = cache_layout(shape, container.is_reference(), with_draft, options.kv_format);
  model->latent_norm_eps_ = static_cast<float>(container.latent_norm_eps());
  model->weights_ = TRY(DenseWeights::load(container, options.load_progress));
  model->has_locked_weights_ = options.locks_weights && model->weights_.lock();
  model->embedding_ = model->weights_.matrix("embedding");
  model->head_ = model->weights_.matrix("head");
  model->norm_ = model->weights_.vector("norm");

  const int64_t layers = layout.layers;
  ExpertTable experts = expert_table(container, shape, layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    model->layers_.push_back(bind_layer(model->weights_, shape, layer));
    if (model->layers_.back().routed) {
      model->layers_.back().routed->experts = {
          .first = experts.first[layer], .count = static_cast<int32_t>(shape.n_routed_experts)};
      model->layers_.back().routed->shape = experts.shapes[layer];
    }
  }
  if (with_draft) {
    model->draft_ = bind_draft(model->weights_, shape);
    const std::string prefix = fmt::format("layers.{}.", shape.layers);
    const bool has_embedding = container.find(prefix + "embedding") != nullptr;
    const bool has_head = container.find(prefix + "head") != nullptr;
    model->draft_embedding_ =
        has_embedding ? model->weights_.matrix(prefix + "embedding") : model->embedding_;
    model->draft_head_ = has_head ? model->weights_.matrix(prefix + "head") : model->head_;
  }

  model->reader_ = TRY(open_expert_reader(container, options.mirrors, options.reader));
  // Reads of copies are split at ever another point: a check of one says nothing of the next.
  const Verify verify = options.mirrors.empty() ? options.verify : Verify::always;
  const int64_t experts_in_cache = std::ssize(experts.extents);
  std::vector<int32_t> warm_up =
      warm_start_order(options.usage_prior, experts.extents, options.arena_bytes);
  model->cache_.emplace(
      TRY(ExpertCache::create(std::move(experts.extents), options.arena_bytes,
                              *model->reader_.reader, verify, shape.n_routed_experts)));
  const int64_t expert_count = std::min(experts_in_cache, std::ssize(options.usage_prior));
  for (int64_t expert = 0; expert < expert_count; ++expert) {
    const float uses = options.usage_prior[expert];
    if (uses > 0) model->cache_->seed_heat(static_cast<int32_t>(expert), uses);
  }
  if (options.experts_held_bytes != nullptr) {
    model->cache_->publish_held_bytes(*options.experts_held_bytes);
  }
  model->cache_->plan_warm_up(std::move(warm_up));
  model->cache_->allow_read_ahead(options.look_ahead != LookAhead::off);
  model->pool_ = TRY(CachePool::create(std::move(layout), options.kv_pool_bytes));
  model->shape_ = {.vocabulary = shape.vocabulary,
                   .layers = shape.layers,
                   .context_max = shape.max_position,
                   .cache_bytes_per_token = model->pool_->layout().bytes_per_token()};
  return std::unique_ptr<Model>(std::move(model));
}

Result<ModelSizes> GlmModel::sizes(const Container& container, bool wants_draft,
                                   KvFormat kv_format) {
  const CheckpointConfig& config = container.checkpoint();
  const bool with_draft = wants_draft && container.checkpoint().draft_layers == 1;
  const CacheLayout layout = cache_layout(config, container.is_reference(), with_draft, kv_format);
  const ExpertTable experts = expert_table(container, config, layout.layers);
  ModelSizes sizes;
  sizes.dense_bytes = DenseWeights::bytes_needed(container);
  for (const ExpertExtent& extent : experts.extents) sizes.experts_bytes += extent.bytes;
  sizes.arena_bytes_min = ExpertCache::arena_bytes_min(experts.extents);
  sizes.kv_bytes_per_token = layout.bytes_per_token();
  sizes.key_bytes = layout.key.bytes();
  sizes.context_max = config.max_position;
  const auto is_exact = [](const ExpertShape& shape) {
    return shape.hidden > 0 && !is_quantised(shape.format);
  };
  sizes.scratch = scratch_sizes(
      config, std::none_of(experts.shapes.begin(), experts.shapes.end(), is_exact), with_draft);
  return sizes;
}

std::vector<std::string> GlmModel::take_disk_events() {
  std::vector<std::string> events = reader_.reader->take_events();
  for (std::string& event : cache_->take_events()) events.push_back(std::move(event));
  return events;
}

Result<std::unique_ptr<SequenceState>> GlmModel::new_sequence(int64_t tokens_max) {
  return std::unique_ptr<SequenceState>(TRY(GlmSequence::create(*pool_, tokens_max)));
}

// The caller's until it ends.
GlmPass& GlmModel::take_pass() {
  if (passes_.empty()) return *new GlmPass(*this);
  GlmPass* pass = passes_.back().release();
  passes_.pop_back();
  return *pass;
}

Result<PassPtr> GlmModel::begin(std::span<const BatchPart> parts) {
  for (const BatchPart& part : parts) {
    const auto& sequence = static_cast<const GlmSequence&>(*part.sequence);
    const auto count = static_cast<int64_t>(part.tokens.size());
    if (count == 0) return error(ErrorKind::internal, "a part of the batch has no tokens");
    if (sequence.length() + count > sequence.tokens_max()) {
      return error(ErrorKind::no_memory, "sequence: wanted room for {} tokens, got {}",
                   sequence.length() + count, sequence.tokens_max());
    }
    for (const int32_t token : part.tokens) {
      if (token < 0 || token >= config_.vocabulary) {
        return error(ErrorKind::bad_input, "token id: wanted 0 to {}, got {}",
                     config_.vocabulary - 1, token);
      }
    }
  }
  GlmPass& pass = take_pass();
  pass.start(parts);
  return PassPtr(&pass);
}

Result<PassPtr> GlmModel::begin_draft(SequenceState& sequence, std::span<const int32_t> tokens,
                                      std::span<const float> hidden) {
  if (draft_.eh_proj.data == nullptr) {
    return error(ErrorKind::bad_input, "this model has no draft layer");
  }
  CHECK(static_cast<int64_t>(hidden.size()) ==
        static_cast<int64_t>(tokens.size()) * config_.hidden_size);
  GlmPass& pass = take_pass();
  pass.start_draft(static_cast<GlmSequence&>(sequence), tokens, hidden);
  return PassPtr(&pass);
}

}  // namespace glmd
