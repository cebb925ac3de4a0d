#include "tools/mirror/mirror_plan.h"

#include <set>
#include <sstream>

#include "platform/file.h"
#include "platform/json.h"

namespace glmd {

constexpr int64_t order_bytes_max = int64_t{16} << 20;

static const Tensor* find_expert(const Container& container, int64_t layer, int64_t expert) {
  return container.find(fmt::format("layers.{}.experts.{}", layer, expert));
}

std::vector<const Tensor*> even_order(const Container& container) {
  const CheckpointConfig& config = container.checkpoint();
  std::vector<const Tensor*> order;
  for (int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
    for (int64_t layer = 0; layer < config.all_layers(); ++layer) {
      const Tensor* tensor = find_expert(container, layer, expert);
      if (tensor != nullptr) order.push_back(tensor);
    }
  }
  return order;
}

Result<std::vector<const Tensor*>> read_order(const std::string& path, const Container& container) {
  std::istringstream lines(TRY(read_input(path, order_bytes_max)));
  std::vector<const Tensor*> order;
  std::set<const Tensor*> seen;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    int64_t layer = 0, expert = 0;
    std::string rest;
    if (!(words >> layer >> expert) || words >> rest) {
      return error(ErrorKind::bad_input, "{}: line {}: wanted LAYER EXPERT, got {}", path, number,
                   Json::string(line).to_string());
    }
    const Tensor* tensor = find_expert(container, layer, expert);
    if (tensor == nullptr) {
      return error(ErrorKind::bad_input, "{}: line {}: {} has no expert {} in layer {}", path,
                   number, container.folder(), expert, layer);
    }
    if (seen.insert(tensor).second) order.push_back(tensor);
  }
  for (const Tensor* tensor : even_order(container)) {
    if (seen.insert(tensor).second) order.push_back(tensor);
  }
  return order;
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
