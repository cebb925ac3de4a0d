#include "storage/dense_weights.h"

namespace glmd {

Result<DenseWeights> DenseWeights::load(const Container& container) {
  constexpr int64_t alignment = 64;
  int64_t total_bytes = 0;
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout != TensorLayout::expert) total_bytes += round_up(tensor.bytes, alignment);
  }
  DenseWeights weights;
  weights.memory_ = TRY_CONTEXT(AlignedMemory::allocate(total_bytes), "dense weights");
  uint8_t* next = weights.memory_.data();
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout == TensorLayout::expert) continue;
    TRY(container.read(tensor, {next, static_cast<size_t>(tensor.bytes)}));
    weights.places_[name] = {{next, tensor.rows, tensor.columns, tensor.format}, tensor.layout};
    next += round_up(tensor.bytes, alignment);
  }
  return weights;
}

Matrix DenseWeights::matrix(std::string_view name) const {
  const auto found = places_.find(name);
  CHECK(found != places_.end());
  CHECK(found->second.layout != TensorLayout::vector);
  return found->second.matrix;
}

const float* DenseWeights::vector(std::string_view name) const {
  const auto found = places_.find(name);
  CHECK(found != places_.end());
  CHECK(found->second.layout == TensorLayout::vector);
  return reinterpret_cast<const float*>(found->second.matrix.data);
}

}  // namespace glmd
