// Rows of a checkpoint's matrix as float32: BF16, F16 and F32 as they are, FP8 as one float32
// product with the scale of its block. Loading is the caller's thread's; filling is any thread's.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/convert/conversion_plan.h"

namespace glmd {

class RowReader {
 public:
  // Reads the scales, which must be finite.
  static Result<RowReader> open(const Checkpoint& checkpoint, const MatrixSource& source);

  // Reads rows [begin, end) into memory, in place of those loaded before.
  Result<void> load(int64_t begin, int64_t end);
  // A loaded row; false where a value is not finite. `out` has `columns`. Thread: any.
  bool fill(int64_t row, float* out) const;

  const MatrixSource& source() const { return source_; }
  // "FILE: tensor NAME"
  std::string where() const;

 private:
  RowReader(const Checkpoint& checkpoint, const MatrixSource& source)
      : checkpoint_(checkpoint), source_(source) {}
  void fill_fp8(int64_t row, const uint8_t* codes, float* out) const;

  const Checkpoint& checkpoint_;
  MatrixSource source_;
  int64_t element_bytes_ = 0;
  int64_t scale_columns_ = 0;
  std::vector<float> scales_;  // of our blocks' rows, from first_scale_row on
  std::vector<uint8_t> raw_;
  int64_t first_loaded_ = 0;
};

}  // namespace glmd
