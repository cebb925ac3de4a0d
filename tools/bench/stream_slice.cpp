#include "stream_slice.h"

#include <algorithm>

#include "experts/synthetic_routing.h"

namespace glmd {

std::vector<float> Slice::usage_prior() const {
  std::vector<float> uses(tensors.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    const int64_t rank = static_cast<int64_t>(i) % experts;
    uses[i] = 0.01F / static_cast<float>(rank + 1);
  }
  return uses;
}

Result<Slice> slice_of(const Container& container) {
  const CheckpointConfig& config = container.checkpoint();
  Slice slice;
  slice.experts = config.n_routed_experts;
  slice.chosen = config.experts_per_token;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_sparse[layer]) continue;
    slice.layers.push_back(layer);
    for (int64_t expert = 0; expert < slice.experts; ++expert) {
      slice.tensors.push_back(container.find(fmt::format("layers.{}.experts.{}", layer, expert)));
      slice.bytes += slice.tensors.back()->bytes;
    }
  }
  if (slice.layers.empty()) {
    return error(ErrorKind::bad_input, "{}: wanted layers with experts, got none",
                 container.folder());
  }
  return slice;
}

RoutingTable::RoutingTable(const Slice& slice, int64_t tokens, double recall) : slice_(slice) {
  SyntheticRouting routing({.layers = std::ssize(slice.layers),
                            .experts = slice.experts,
                            .chosen = slice.chosen,
                            .text_tokens = text_tokens,
                            .guess_recall = recall});
  for (int64_t token = 0; token < tokens; ++token) {
    routing.next_token();
    for (int64_t layer = 0; layer < std::ssize(slice.layers); ++layer) {
      for (const int32_t expert : routing.chosen(layer)) chosen_.push_back(expert);
      for (const int32_t expert : routing.guesses(layer)) guesses_.push_back(expert);
    }
  }
}

std::vector<int32_t> RoutingTable::experts_of(int64_t token, int64_t layer_index) const {
  std::vector<int32_t> experts;
  for (int64_t rank = 0; rank < slice_.chosen; ++rank) {
    experts.push_back(static_cast<int32_t>(layer_index * slice_.experts) +
                      chosen_[index_of(token, layer_index) + rank]);
  }
  return experts;
}

int64_t RoutingTable::index_of(int64_t token, int64_t layer_index) const {
  return (token * std::ssize(slice_.layers) + layer_index) * slice_.chosen;
}

void RoutingTable::fill(const std::vector<int32_t>& experts, int64_t layer, int64_t position,
                        std::span<Choice> choices) const {
  const int64_t layer_index =
      std::find(slice_.layers.begin(), slice_.layers.end(), layer) - slice_.layers.begin();
  for (int64_t rank = 0; rank < slice_.chosen; ++rank) {
    choices[rank].expert = is_resident_
                               ? static_cast<int32_t>(rank)
                               : experts[index_of(first_token_ + position, layer_index) + rank];
  }
}

}  // namespace glmd
