// All tensors but the routed experts, in one mapping, checked against their hashes. Thread: any,
// after load.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "platform/aligned_memory.h"
#include "storage/container.h"

namespace glmd {

class DenseWeights {
 public:
  static Result<DenseWeights> load(const Container& container);

  // CHECK that the tensor exists: Container::open saw to it. gate_up: `rows` is that of gate.
  Matrix matrix(std::string_view name) const;
  const float* vector(std::string_view name) const;
  int64_t size_bytes() const { return memory_.size_bytes(); }
  bool lock() { return memory_.lock(); }

 private:
  struct Place {
    Matrix matrix;
    TensorLayout layout;
  };
  AlignedMemory memory_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace glmd
