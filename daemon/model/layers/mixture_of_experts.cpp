#include "model/layers/mixture_of_experts.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

namespace glmd {
namespace {

// Scores of a layer's router for `input` and the experts they choose.
Result<void> route(const Compute& compute, const CheckpointConfig& config,
                   const RoutedWeights& weights, ActivationRows& input, int64_t row_count,
                   std::vector<float>& score_buffer, std::vector<Choice>& choice_buffer,
                   Workspace& workspace) {
  const int64_t experts = config.n_routed_experts, chosen = config.experts_per_token;
  float* scores = grown(score_buffer, row_count * experts);
  Choice* choices = grown(choice_buffer, row_count * chosen);
  multiply(compute, weights.router, input, scores, experts);
  const RouterRule rule{.experts = experts,
                        .chosen = chosen,
                        .groups = config.n_group,
                        .groups_kept = config.topk_group,
                        .is_normalised = config.norm_topk_prob,
                        .scale = static_cast<float>(config.routed_scaling_factor)};
  const int64_t scratch_floats = router_scratch_floats(rule);
  float* scratch = grown(workspace.router_scratch, compute.team.thread_count() * scratch_floats);
  std::atomic<bool> is_finite{true};
  compute.team.run(row_count, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      float* row_scores = scores + row * experts;
      if (!std::all_of(row_scores, row_scores + experts,
                       [](float z) { return std::isfinite(z); })) {
        is_finite = false;
        return;
      }
      compute.kernels.sigmoid(row_scores, experts, row_scores);
      select_experts(rule, {row_scores, static_cast<size_t>(experts)},
                     {weights.bias, static_cast<size_t>(experts)},
                     {scratch + thread * scratch_floats, static_cast<size_t>(scratch_floats)},
                     {choices + row * chosen, static_cast<size_t>(chosen)});
    }
  });
  if (!is_finite) return error(ErrorKind::internal, "router: a score is not finite");
  return {};
}

// What each row counts for when experts are evicted: the end of a prompt tells best what comes
// next, so a row is worth what is left of it there. Rows of a part are consecutive.
void weigh_uses(std::span<const PassRow> rows, double half_life_tokens, double* weights) {
  const double decay = std::exp2(-1 / half_life_tokens);
  for (size_t row = rows.size(); row-- > 0;) {
    const bool is_last = row + 1 == rows.size() || rows[row].part != rows[row + 1].part;
    weights[row] = is_last ? 1.0 : weights[row + 1] * decay;
  }
}

// Every chosen expert once, with the rows that chose it, both in ascending order.
std::span<const ExpertWork> list_works(const CheckpointConfig& config, const RoutedWeights& weights,
                                       std::span<const PassRow> rows,
                                       std::span<const Choice> choices, double half_life_tokens,
                                       WorkList& list) {
  const int64_t experts = config.n_routed_experts;
  const auto count = static_cast<int32_t>(choices.size());
  int32_t* work_rows = grown(list.rows, count);
  int32_t* work_outputs = grown(list.outputs, count);
  double* uses = grown(list.uses, static_cast<int64_t>(rows.size()));
  weigh_uses(rows, half_life_tokens, uses);

  // Where each expert's rows end among those of all, once they are in place.
  std::vector<int32_t>& ends = list.ends;
  ends.assign(static_cast<size_t>(experts), 0);
  for (const Choice& choice : choices) ++ends[choice.expert];
  std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), 0);
  for (int32_t output = 0; output < count; ++output) {
    const int32_t place = ends[choices[output].expert]++;
    work_rows[place] = output / static_cast<int32_t>(config.experts_per_token);
    work_outputs[place] = output;
  }

  list.works.clear();
  list.works.reserve(static_cast<size_t>(experts));
  int32_t begin = 0;
  for (int32_t expert = 0; expert < experts; begin = ends[expert++]) {
    const auto row_count = static_cast<size_t>(ends[expert] - begin);
    if (row_count == 0) continue;
    ExpertWork work{.expert = weights.experts.first + expert,
                    .rows = {work_rows + begin, row_count},
                    .outputs = {work_outputs + begin, row_count}};
    for (const int32_t row : work.rows) work.uses += uses[row];
    list.works.push_back(work);
  }
  return list.works;
}

void run_shared(const Compute& compute, const CheckpointConfig& config, const LayerWeights& weights,
                int64_t row_count, Workspace& workspace) {
  const FeedForwardWeights& mlp = weights.feed_forward;
  const FeedForward one{.gate_up = mlp.gate_up, .down = mlp.down, .rows = {}, .outputs = {}};
  run_feed_forward(compute, {&one, 1},
                   workspace.normed_rows.for_format(compute, mlp.gate_up.format),
                   workspace.experts.feed_forward,
                   grown(workspace.update, row_count * config.hidden_size), config.hidden_size);
}

// The next layer's router on the state as far as it is known: this layer's attention and shared
// expert are in it, its routed experts and the next attention are not.
Result<void> guess_next(const Compute& compute, const CheckpointConfig& config,
                        const LayerWeights& next, int64_t row_count, const float* shared,
                        Workspace& workspace) {
  const int64_t hidden = config.hidden_size;
  float* state = grown(workspace.guess_state, row_count * hidden);
  compute.team.run(row_count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = state + row * hidden;
      std::copy_n(workspace.hidden.data() + row * hidden, hidden, x);
      if (shared != nullptr) compute.kernels.add_scaled(x, shared + row * hidden, 1.0F, hidden);
      compute.kernels.rms_norm(x, next.post_attention_norm, hidden,
                               static_cast<float>(config.rms_norm_eps), x);
    }
  });
  workspace.guess_rows.set(state, hidden, row_count, hidden);
  return route(compute, config, *next.routed, workspace.guess_rows, row_count,
               workspace.guess_scores, workspace.guess_choices, workspace);
}

// The sum of a row's experts in routing order, then the shared one, into workspace.update.
void combine(const Compute& compute, const CheckpointConfig& config, int64_t row_count,
             Workspace& workspace) {
  const int64_t hidden = config.hidden_size, chosen = config.experts_per_token;
  float *outputs = workspace.expert_outputs.data(), *shared = workspace.update.data();
  compute.team.run(row_count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum = outputs + row * chosen * hidden;  // the first expert's place becomes the sum
      const Choice* choices = workspace.choices.data() + row * chosen;
      for (int64_t i = 0; i < hidden; ++i) sum[i] *= choices[0].weight;
      for (int64_t rank = 1; rank < chosen; ++rank) {
        compute.kernels.add_scaled(sum, sum + rank * hidden, choices[rank].weight, hidden);
      }
      compute.kernels.add_scaled(shared + row * hidden, sum, 1.0F, hidden);
    }
  });
}

}  // namespace

// The surest first; all of a stream's, as it lies on disk.
void read_ahead(const Compute& compute, const CheckpointConfig& config, const RoutedLayer& routed,
                ExpertCache& cache, std::span<const PassRow> rows, const float* shared,
                Workspace& workspace) {
  const LayerWeights& next = *routed.next;
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t chosen = config.experts_per_token;
  if (!guess_next(compute, config, next, row_count, shared, workspace).ok()) return;
  std::vector<Guess>& guesses = workspace.guesses;
  guesses.clear();
  guesses.reserve(static_cast<size_t>(row_count * chosen));
  for (int64_t row = 0; row < row_count; ++row) {
    const std::span<Choice> choices{workspace.guess_choices.data() + row * chosen,
                                    static_cast<size_t>(chosen)};
    if (routed.routing != nullptr) {
      routed.routing->guess(routed.layer + 1, rows[row].position, choices);
    }
    for (int64_t rank = 0; rank < chosen; ++rank) {
      guesses.push_back({next.routed->experts.first + choices[rank].expert, chosen - rank});
    }
  }
  rank_guesses(guesses);
  if (routed.pace == Pace::stream) {
    std::sort(guesses.begin(), guesses.end(), [&](const Guess& a, const Guess& b) {
      return cache.is_stored_before(a.expert, b.expert);
    });
  }
  for (const auto& [expert, confidence] : guesses) {
    if (cache.is_absent(expert) && !cache.read_ahead(expert)) return;
  }
}

Result<void> run_mixture_of_experts(const Compute& compute, const CheckpointConfig& config,
                                    const RoutedLayer& routed, ExpertCache& cache,
                                    std::span<const PassRow> rows, Workspace& workspace) {
  const RoutedWeights& weights = *routed.weights.routed;
  const auto row_count = static_cast<int64_t>(rows.size());
  const int64_t chosen = config.experts_per_token;
  TRY(route(compute, config, weights, workspace.normed_rows, row_count, workspace.router_scores,
            workspace.choices, workspace));
  mark(workspace.times, StepPart::router);
  if (routed.routing != nullptr) {
    for (int64_t row = 0; row < row_count; ++row) {
      routed.routing->choose(
          routed.layer, rows[row].position,
          {workspace.choices.data() + row * chosen, static_cast<size_t>(chosen)});
    }
  }

  float* outputs = grown(workspace.expert_outputs, row_count * chosen * config.hidden_size);
  const std::span<const ExpertWork> works = list_works(
      config, weights, rows, {workspace.choices.data(), static_cast<size_t>(row_count * chosen)},
      cache.half_life_tokens(), workspace.works);
  const Activations& input = workspace.normed_rows.for_format(compute, weights.shape.format);
  const auto meanwhile = [&] {
    mark(workspace.times, StepPart::experts);
    run_shared(compute, config, routed.weights, row_count, workspace);
    mark(workspace.times, StepPart::shared_expert);
    if (routed.next == nullptr) return;
    read_ahead(compute, config, routed, cache, rows, workspace.update.data(), workspace);
  };
  const ExpertStep step{.shape = weights.shape,
                        .layer = weights.experts,
                        .pace = routed.pace,
                        .works = works,
                        .meanwhile = meanwhile};
  TRY(run_experts(cache, compute, step, input, workspace.experts, outputs));
  combine(compute, config, row_count, workspace);
  mark(workspace.times, StepPart::experts);
  return {};
}

}  // namespace glmd
