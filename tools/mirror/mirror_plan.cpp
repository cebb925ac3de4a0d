#include "tools/mirror/mirror_plan.h"

#include <algorithm>

#include "experts/routing_trace.h"
#include "experts/usage_history.h"

namespace glmd {
namespace {

struct Expert {
  const Tensor* tensor = nullptr;
  int64_t layer = 0, index = 0;
  float uses = 0;
};

std::vector<Expert> experts_in_even_order(const Container& container) {
  const CheckpointConfig& config = container.checkpoint();
  std::vector<Expert> experts;
  for (int64_t index = 0; index < config.n_routed_experts; ++index) {
    for (int64_t layer = 0; layer < config.all_layers(); ++layer) {
      const Tensor* tensor = container.find(fmt::format("layers.{}.experts.{}", layer, index));
      if (tensor != nullptr) experts.push_back({tensor, layer, index});
    }
  }
  return experts;
}

std::vector<const Tensor*> tensors_of(const std::vector<Expert>& experts) {
  std::vector<const Tensor*> tensors;
  for (const Expert& expert : experts) tensors.push_back(expert.tensor);
  return tensors;
}

}  // namespace

std::vector<const Tensor*> even_order(const Container& container) {
  return tensors_of(experts_in_even_order(container));
}

Result<std::vector<const Tensor*>> order_of_use(const std::string& history_path,
                                                const Container& container) {
  const RoutingShape shape = routing_shape(container);
  UsageHistory history(shape);
  if (Result<void> loaded = history.load(history_path); !loaded.ok()) {
    Error failure = std::move(loaded).error();
    if (failure.kind == ErrorKind::config) failure.kind = ErrorKind::bad_input;  // no setting here
    return failure;
  }
  const std::vector<float> counts = history.counts();
  std::vector<int64_t> first;  // of each layer in `counts`, which leaves dense ones out
  int64_t next = 0;
  for (const int64_t bytes : shape.expert_bytes) {
    first.push_back(next);
    if (bytes > 0) next += shape.experts;
  }
  std::vector<Expert> experts = experts_in_even_order(container);
  for (Expert& expert : experts) {
    const int64_t place = first[static_cast<size_t>(expert.layer)] + expert.index;
    expert.uses = counts[static_cast<size_t>(place)];
  }
  std::stable_sort(experts.begin(), experts.end(),
                   [](const Expert& a, const Expert& b) { return a.uses > b.uses; });
  return tensors_of(experts);
}

MirrorPlan plan_mirror(const std::vector<const Tensor*>& order, int64_t bytes_max) {
  MirrorPlan plan;
  for (const Tensor* tensor : order) {
    if (plan.bytes + tensor->bytes > bytes_max) continue;
    plan.experts.push_back(tensor);
    plan.bytes += tensor->bytes;
  }
  return plan;
}

}  // namespace glmd
