// What AVX-512 (F, BW, VL, DQ, VBMI, VNNI) does in its own way; all else is taken from avx2/.
#pragma once

#include "kernels/kernel_table.h"

namespace glmd::avx512 {

void matmul_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
               int64_t end);
void matmul_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);
void matmul_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);

void gate_up_q8(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                int64_t end);
void gate_up_nl5(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);
void gate_up_nl4(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
                 int64_t end);

}  // namespace glmd::avx512
