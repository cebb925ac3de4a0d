// All tensors of a container but the experts, resident in one piece of memory, each 64-byte
// aligned.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>

#include "kernels/block_formats.h"
#include "platform/aligned_memory.h"
#include "platform/result.h"
#include "storage/container.h"

namespace glmd {

class DenseWeights {
 public:
  // Several times a second; an error ends the loading with it.
  using Progress = std::function<Result<void>(int64_t bytes_done, int64_t bytes_total)>;

  // Reads and checks every checksum. `container` must outlive the weights.
  static Result<DenseWeights> load(const Container& container, const Progress& progress = {});

  // What load() will take: known before any memory is.
  static int64_t bytes_needed(const Container& container);

  bool has(std::string_view name) const { return places_.find(name) != places_.end(); }
  const Tensor& tensor(std::string_view name) const;  // must exist
  const uint8_t* data(std::string_view name) const;   // must exist
  const float* vector(std::string_view name) const;   // of layout vector
  Matrix matrix(std::string_view name) const;         // gate_up: rows of gate
  int64_t size_bytes() const { return memory_.size_bytes(); }
  // False where RLIMIT_MEMLOCK forbids it.
  bool lock() { return memory_.lock(); }

 private:
  struct Place {
    const Tensor* tensor;
    int64_t offset;
  };
  AlignedMemory memory_;
  std::map<std::string_view, Place> places_;  // names live in the container
};

}  // namespace glmd
