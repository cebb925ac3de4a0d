// One tensor of the container: a team reads rows of the checkpoint and encodes them, a thread of
// its own hashes and writes what is done. Memory: the encoded tensor where row scales stand in
// front, else a band of it, and what waits to be written.
#pragma once

#include <cstdint>
#include <functional>

#include "storage/safetensors.h"
#include "tools/convert/background.h"
#include "tools/convert/conversion_plan.h"
#include "tools/convert/row_encoder.h"
#include "tools/convert/row_reader.h"

namespace glmd {

class TensorEncoder {
 public:
  TensorEncoder(const Checkpoint& checkpoint, Team& team, const KernelTable& kernels,
                Background& writes)
      : checkpoint_(checkpoint), kernels_(kernels), rows_(team, kernels), writes_(writes) {}

  // Encodes the tensor and leaves it to `writes` to put it at `offset`. By the time `writes` has
  // finished, `hash` is that of its bytes, which depends on neither threads nor CPU; until then
  // `writer` and `hash` must live.
  Result<void> encode(const PlannedTensor& tensor, SafetensorsWriter& writer, int64_t offset,
                      uint64_t& hash);

 private:
  using Write = std::function<Result<void>(std::vector<uint8_t>)>;
  Result<void> encode_single(const PlannedTensor& tensor, const RowReader& reader,
                             const Write& write);
  Result<void> encode_bands(BlockFormat format, const RowSource& source, const Write& write);
  Result<void> encode_several(const PlannedTensor& tensor, const std::vector<RowReader>& readers,
                              const Write& write);

  const Checkpoint& checkpoint_;
  const KernelTable& kernels_;
  RowEncoder rows_;
  Background& writes_;
};

}  // namespace glmd
