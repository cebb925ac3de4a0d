#include "kernels/avx2/kernels.h"
#include "kernels/avx512/kernels.h"
#include "kernels/scalar/kernels.h"

namespace glmd {

const KernelTable& avx512_kernels();

const KernelTable& avx512_kernels() {
  using namespace avx2;
  static constexpr KernelTable table = {
      .name = "avx512",
      .quantise = avx512::quantise,
      .matmul = {avx512::matmul_f32, avx512::matmul_f16, avx512::matmul_bf16, avx512::matmul_q8,
                 avx512::matmul_nl5, avx512::matmul_nl4},
      .gate_up = {gate_up_f32, gate_up_f16, gate_up_bf16, avx512::gate_up_q8, avx512::gate_up_nl5,
                  avx512::gate_up_nl4},
      .embedding_row = {embedding_row_f32, embedding_row_f16, embedding_row_bf16, embedding_row_q8,
                        nullptr, nullptr},
      .encode_row = {nullptr, nullptr, nullptr, scalar::encode_row_q8, avx512::encode_row_nl5,
                     avx512::encode_row_nl4},
      .largest_magnitude = avx512::largest_magnitude,
      .rms_norm = avx512::rms_norm,
      .layer_norm = avx512::layer_norm,
      .rotate = rotate,
      .add_scaled = avx512::add_scaled,
      .sigmoid = avx512::sigmoid,
      .exp_and_sum = avx512::exp_and_sum,
      .find_largest = avx512::find_largest,
      .weigh = avx512::weigh,
      .find_at_least = avx512::find_at_least,
      .to_f16 = to_f16,
      .from_f16 = from_f16,
      .attend_spans = avx512::attend_spans,
      .finish_attention = avx512::finish_attention,
      .index_scores = avx512::index_scores,
      .select_top = avx512::select_top,
  };
  return table;
}

}  // namespace glmd
