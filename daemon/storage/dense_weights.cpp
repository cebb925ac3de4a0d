#include "storage/dense_weights.h"

#include <algorithm>
#include <vector>

namespace glmd {
namespace {

constexpr int64_t tensor_alignment = 64;

}  // namespace

int64_t DenseWeights::bytes_needed(const Container& container) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout != TensorLayout::expert) bytes += round_up(tensor.bytes, tensor_alignment);
  }
  return bytes;
}

Result<DenseWeights> DenseWeights::load(const Container& container, const Progress& progress) {
  DenseWeights weights;
  const int64_t bytes_total = bytes_needed(container);
  weights.memory_ = TRY_CONTEXT(AlignedMemory::allocate(bytes_total), "dense weights");

  std::vector<const Tensor*> tensors;
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout != TensorLayout::expert) tensors.push_back(&tensor);
  }
  // In the order of the disk.
  std::sort(tensors.begin(), tensors.end(), [](const Tensor* a, const Tensor* b) {
    return std::pair(a->file, a->offset) < std::pair(b->file, b->offset);
  });
  int64_t offset = 0;
  for (const Tensor* tensor : tensors) {
    const std::span<uint8_t> target = weights.memory_.bytes().subspan(
        static_cast<size_t>(offset), static_cast<size_t>(tensor->bytes));
    TRY(container.read(*tensor, target, [&](int64_t bytes_done) -> Result<void> {
      if (!progress) return {};
      return progress(offset + bytes_done, bytes_total);
    }));
    weights.places_.emplace(tensor->name, Place{tensor, offset});
    offset += round_up(tensor->bytes, tensor_alignment);
  }
  if (progress) TRY(progress(bytes_total, bytes_total));
  return weights;
}

const Tensor& DenseWeights::tensor(std::string_view name) const {
  const auto place = places_.find(name);
  CHECK(place != places_.end());
  return *place->second.tensor;
}

const uint8_t* DenseWeights::data(std::string_view name) const {
  const auto place = places_.find(name);
  CHECK(place != places_.end());
  return memory_.data() + place->second.offset;
}

const float* DenseWeights::vector(std::string_view name) const {
  CHECK(tensor(name).layout == TensorLayout::vector);
  return reinterpret_cast<const float*>(data(name));
}

Matrix DenseWeights::matrix(std::string_view name) const {
  const Tensor& found = tensor(name);
  return {.data = data(name), .rows = found.rows, .columns = found.columns, .format = found.format};
}

}  // namespace glmd
