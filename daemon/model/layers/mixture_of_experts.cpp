#include "model/layers/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace glmd {
namespace {

Result<void> route(const Compute& compute, const CheckpointConfig& config,
                   const RoutedWeights& weights, int64_t row_count, Workspace& workspace) {
  const int64_t experts = config.n_routed_experts, chosen = config.experts_per_token;
  float* scores = grown(workspace.router_scores, row_count * experts);
  grown(workspace.choices, row_count * chosen);
  multiply(compute, weights.router, workspace.normed_rows, scores, experts);
  const RouterRule rule{.experts = experts,
                        .chosen = chosen,
                        .groups = config.n_group,
                        .groups_kept = config.topk_group,
                        .is_normalised = config.norm_topk_prob,
                        .scale = static_cast<float>(config.routed_scaling_factor)};
  const int64_t scratch_floats = router_scratch_floats(rule);
  float* scratch = grown(workspace.router_scratch, scratch_floats);
  for (int64_t row = 0; row < row_count; ++row) {
    float* row_scores = scores + row * experts;
    if (!std::all_of(row_scores, row_scores + experts, [](float z) { return std::isfinite(z); })) {
      return error(ErrorKind::internal, "router: a score is not finite");
    }
    compute.kernels.sigmoid(row_scores, experts, row_scores);
    select_experts(rule, {row_scores, static_cast<size_t>(experts)},
                   {weights.bias, static_cast<size_t>(experts)},
                   {scratch, static_cast<size_t>(scratch_floats)},
                   {workspace.choices.data() + row * chosen, static_cast<size_t>(chosen)});
  }
  return {};
}

// Every chosen expert once, with the rows that chose it, in ascending id.
std::vector<ExpertWork> work_list(const CheckpointConfig& config, const RoutedWeights& weights,
                                  int64_t row_count, const Workspace& workspace) {
  std::vector<int64_t> place(static_cast<size_t>(config.n_routed_experts), -1);
  std::vector<ExpertWork> works;
  const int64_t count = row_count * config.experts_per_token;
  for (int64_t output = 0; output < count; ++output) {
    const int32_t expert = workspace.choices[output].expert;
    if (place[expert] < 0) {
      place[expert] = static_cast<int64_t>(works.size());
      works.push_back({.expert = weights.first_expert + expert, .rows = {}, .outputs = {}});
    }
    ExpertWork& work = works[place[expert]];
    work.rows.push_back(static_cast<int32_t>(output / config.experts_per_token));
    work.outputs.push_back(static_cast<int32_t>(output));
  }
  std::sort(works.begin(), works.end(),
            [](const ExpertWork& a, const ExpertWork& b) { return a.expert < b.expert; });
  return works;
}

}  // namespace

Result<void> run_mixture_of_experts(const Compute& compute, const CheckpointConfig& config,
                                    const LayerWeights& weights, ExpertCache& cache,
                                    int64_t row_count, Workspace& workspace) {
  const RoutedWeights& routed = *weights.routed;
  TRY(route(compute, config, routed, row_count, workspace));

  const int64_t hidden = config.hidden_size, chosen = config.experts_per_token;
  float* outputs = grown(workspace.expert_outputs, row_count * chosen * hidden);
  const std::vector<ExpertWork> works = work_list(config, routed, row_count, workspace);
  const Activations& input = workspace.normed_rows.for_format(compute, routed.shape.format);
  TRY(run_experts(cache, compute.kernels, compute.team, routed.shape, works, input,
                  workspace.experts, outputs));

  float* shared = grown(workspace.update, row_count * hidden);
  const FeedForwardWeights& mlp = weights.feed_forward;
  run_feed_forward(compute.kernels, compute.team, mlp.gate_up, mlp.down,
                   workspace.normed_rows.for_format(compute, mlp.gate_up.format), workspace.experts,
                   shared, hidden);

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
  return {};
}

}  // namespace glmd
