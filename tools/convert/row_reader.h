// Rows of a checkpoint's matrix as float32: BF16, F16 and F32 as they are, FP8 as one float32
// product with the scale of its block.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/convert/conversion_plan.h"

namespace glmd {

class RowReader {
 public:
  // Reads the scales, which must be finite.
  static Result<RowReader> open(const Checkpoint& checkpoint, const MatrixSource& source);

  // Rows [begin, end) to `out`, which has `columns` for each. `raw` is room of the caller's that it
  // may use again. Thread: any.
  Result<void> read(int64_t begin, int64_t end, std::vector<uint8_t>& raw, float* out) const;

  const MatrixSource& source() const { return source_; }
  // "FILE: tensor NAME"
  std::string where() const;

 private:
  RowReader(const Checkpoint& checkpoint, const MatrixSource& source)
      : checkpoint_(checkpoint), source_(source) {}
  void convert_fp8(int64_t row, const uint8_t* codes, float* out) const;

  const Checkpoint& checkpoint_;
  MatrixSource source_;
  int64_t element_bytes_ = 0;
  int64_t scale_columns_ = 0;
  std::vector<float> scales_;  // of our blocks' rows, from first_scale_row on
};

}  // namespace glmd
