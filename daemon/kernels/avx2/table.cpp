#include "kernels/avx2/kernels.h"
#include "kernels/scalar/kernels.h"

namespace glmd {

const KernelTable& avx2_kernels();

const KernelTable& avx2_kernels() {
  using namespace avx2;
  static constexpr KernelTable table = {
      .name = "avx2",
      .quantise = quantise,
      .matmul = {matmul_f32, matmul_f16, matmul_bf16, matmul_q8, matmul_nl5, matmul_nl4},
      .gate_up = {gate_up_f32, gate_up_f16, gate_up_bf16, gate_up_q8, gate_up_nl5, gate_up_nl4},
      .embedding_row = {embedding_row_f32, embedding_row_f16, embedding_row_bf16, embedding_row_q8,
                        nullptr, nullptr},
      .encode_row = {nullptr, nullptr, nullptr, scalar::encode_row_q8, encode_row_nl5,
                     encode_row_nl4},
      .largest_magnitude = largest_magnitude,
      .rms_norm = rms_norm,
      .layer_norm = layer_norm,
      .rotate = rotate,
      .add_scaled = add_scaled,
      .sigmoid = sigmoid,
      .exp_and_sum = exp_and_sum,
      .find_largest = find_largest,
      .weigh = weigh,
      .find_at_least = find_at_least,
      .to_f16 = to_f16,
      .from_f16 = from_f16,
      .attend_spans = attend_spans,
      .finish_attention = finish_attention,
      .index_scores = index_scores,
      .select_top = select_top,
  };
  return table;
}

}  // namespace glmd
