#include "compute/activation_rows.h"

#include "platform/grown.h"

namespace glmd {

void ActivationRows::set(const float* values, int64_t value_stride, int64_t row_count,
                         int64_t columns) {
  view_ = {.values = values,
           .value_stride = value_stride,
           .codes = nullptr,
           .scales = nullptr,
           .sums = nullptr,
           .row_count = row_count,
           .columns = columns};
  is_quantised_ = false;
}

const Activations& ActivationRows::for_format(const Compute& compute, BlockFormat format) {
  if (!is_quantised(format) || is_quantised_) return view_;
  const int64_t padded = padded_columns(view_.columns), groups = padded / group_columns;
  int8_t* codes = grown(codes_, view_.row_count * padded);
  float* scales = grown(scales_, view_.row_count * groups);
  int32_t* sums = grown(sums_, view_.row_count * groups);
  compute.team.run(view_.row_count, 1, [&](int64_t begin, int64_t end, int) {
    compute.kernels.quantise(view_.values + begin * view_.value_stride, view_.value_stride,
                             end - begin, view_.columns, codes + begin * padded,
                             scales + begin * groups, sums + begin * groups);
  });
  view_.codes = codes;
  view_.scales = scales;
  view_.sums = sums;
  is_quantised_ = true;
  return view_;
}

Activations part_of(const Activations& rows, int64_t first, int64_t count) {
  Activations part = rows;
  if (rows.values != nullptr) part.values += first * rows.value_stride;
  part.row_count = count;
  if (rows.codes == nullptr) return part;
  const int64_t padded = padded_columns(rows.columns), groups = padded / group_columns;
  part.codes += first * padded;
  part.scales += first * groups;
  part.sums += first * groups;
  return part;
}

}  // namespace glmd
