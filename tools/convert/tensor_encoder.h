// One tensor of the container: read from the checkpoint in bands of rows, encoded by a team,
// written in place. Memory: a band of float32 (64 MiB) and, where row scales stand in front, the
// encoded tensor.
#pragma once

#include <cstdint>

#include "platform/parallel.h"
#include "storage/safetensors.h"
#include "tools/convert/conversion_plan.h"
#include "tools/convert/row_reader.h"

namespace glmd {

class TensorEncoder {
 public:
  TensorEncoder(const Checkpoint& checkpoint, Team& team) : checkpoint_(checkpoint), team_(team) {}

  // Writes the tensor at `offset`; the value is the hash of its bytes, which depends on neither
  // threads nor CPU.
  Result<uint64_t> write(const PlannedTensor& tensor, SafetensorsWriter& writer, int64_t offset);

 private:
  const Checkpoint& checkpoint_;
  Team& team_;
};

}  // namespace glmd
