// The AVX2, FMA and F16C versions; each function's contract stands at its member of KernelTable.
#pragma once

#include "kernels/kernel_table.h"

namespace glmd::avx2 {

void quantise(const float* values, int64_t value_stride, int64_t row_count, int64_t columns,
              int8_t* codes, float* scales, int32_t* sums);

void matmul_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);
void matmul_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);
void matmul_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);
void matmul_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
               int64_t end);
void matmul_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);
void matmul_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);

void gate_up_f32(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);
void gate_up_f16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);
void gate_up_bf16(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                  int64_t end);
void gate_up_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);
void gate_up_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);
void gate_up_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);

void embedding_row_f32(const uint8_t* row, int64_t columns, float* out);
void embedding_row_f16(const uint8_t* row, int64_t columns, float* out);
void embedding_row_bf16(const uint8_t* row, int64_t columns, float* out);
void embedding_row_q8(const uint8_t* row, int64_t columns, float* out);

void encode_row_nl5(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes);
void encode_row_nl4(const float* values, int64_t columns, float row_scale, uint16_t* scales,
                    uint8_t* codes);
float largest_magnitude(const float* x, int64_t n);

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out);
void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                float* out);
void rotate(float* x, const float* cos, const float* sin, int64_t pairs);
void add_scaled(float* y, const float* x, float weight, int64_t n);
void sigmoid(const float* x, int64_t n, float* s);
float exp_and_sum(float* x, int64_t n, float max);
int64_t find_largest(const float* x, int64_t n);
void weigh(const float* x, int64_t n, float max, float scale, float* weights, float* sums);
int64_t find_at_least(const float* x, int64_t n, float limit, int32_t* places);
void to_f16(const float* x, int64_t n, uint16_t* out);
void from_f16(const uint16_t* x, int64_t n, float* out);

void attend_spans(const AttentionInput& input, int64_t span_begin, int64_t span_end,
                  int64_t head_begin, int64_t head_end, float* scratch,
                  const AttentionState& state);
void finish_attention(const AttentionState* states, int64_t state_count, int64_t latent,
                      int64_t head_begin, int64_t head_end, float* out);
void index_scores(const float* queries, const float* head_weights, int64_t heads,
                  const CacheView& keys, float scale, float* scratch, float* scores, int64_t begin,
                  int64_t end);
void select_top(const float* scores, int64_t count, int64_t wanted, int32_t* scratch,
                int32_t* positions);

}  // namespace glmd::avx2
