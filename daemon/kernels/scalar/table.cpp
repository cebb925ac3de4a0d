// The definition of every kernel, in plain loops. Slow on purpose: nothing here is clever.
#include <cstring>

#include "kernels/kernel_table.h"
#include "kernels/scalar/math.h"
#include "platform/check.h"

namespace glmd {
namespace {

using scalar::bf16_to_f32;
using scalar::exp_f32;
using scalar::f16_to_f32;
using scalar::f32_to_f16;

uint16_t load_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

float load_f32(const uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Element i of a row of floats as stored.
template <BlockFormat format>
float element(const uint8_t* row, int64_t i) {
  if constexpr (format == BlockFormat::f32) return load_f32(row + 4 * i);
  if constexpr (format == BlockFormat::f16) return f16_to_f32(load_u16(row + 2 * i));
  return bf16_to_f32(load_u16(row + 2 * i));
}

constexpr int64_t lanes = 16;

float sum_lanes(float* lane) {
  for (int64_t apart = lanes / 2; apart >= 1; apart /= 2) {
    for (int64_t i = 0; i < apart; ++i) lane[i] = lane[i] + lane[i + apart];
  }
  return lane[0];
}

// The float dot of kernel_table.h.
template <BlockFormat format>
float dot(const uint8_t* stored, const float* x, int64_t n) {
  float lane[lanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    lane[i % lanes] = std::fmaf(element<format>(stored, i), x[i], lane[i % lanes]);
  }
  return sum_lanes(lane);
}

// One block as 8 rows of 32 codes and the scales' integer or f16 part.
struct Block {
  int8_t codes[tile_rows][group_columns];
  float scales[tile_rows];
};

template <BlockFormat format>
Block unpack(const uint8_t* block) {
  Block out;
  if constexpr (format == BlockFormat::q8) {
    for (int64_t row = 0; row < tile_rows; ++row) {
      out.scales[row] = f16_to_f32(load_u16(block + 2 * row));
      for (int64_t column = 0; column < group_columns; ++column) {
        out.codes[row][column] = static_cast<int8_t>(
            block[16 + column / 4 * 32 + row * 4 + column % 4]);
      }
    }
    return out;
  }
  const uint8_t* nibbles = block + 8;
  const uint8_t* fifth_bits = nibbles + 128;
  for (int64_t row = 0; row < tile_rows; ++row) {
    const auto magnitude = static_cast<float>(block[row] & 127);
    out.scales[row] = (block[row] & 128) != 0 ? -magnitude : magnitude;
    for (int64_t column = 0; column < group_columns; ++column) {
      const int64_t place = row * 4 + column % 4;  // in a vector of 32 bytes
      const int64_t vector = column / 4;           // two vectors share the nibbles of 32 bytes
      const uint8_t byte = nibbles[vector / 2 * 32 + place];
      const int nibble = vector % 2 == 0 ? byte & 15 : byte >> 4;
      if constexpr (format == BlockFormat::nl4) {
        out.codes[row][column] = nl4_table[nibble];
      } else {
        const int fifth = (fifth_bits[place] >> vector) & 1;
        out.codes[row][column] = nl5_table[nibble + 16 * fifth];
      }
    }
  }
  return out;
}

// Adds one group to the chains of 8 rows.
void add_group(const Block& block, const int8_t* x, float x_scale, float* chains) {
  for (int64_t row = 0; row < tile_rows; ++row) {
    int32_t sum = 0;
    for (int64_t column = 0; column < group_columns; ++column) {
      sum += block.codes[row][column] * x[column];
    }
    chains[row] = std::fmaf(static_cast<float>(sum), block.scales[row] * x_scale, chains[row]);
  }
}

template <BlockFormat format>
void matmul(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
            int64_t end) {
  if constexpr (!is_quantised(format)) {
    const int64_t row_bytes = w.columns * element_bytes(format);
    for (int64_t n = 0; n < x.row_count; ++n) {
      for (int64_t row = begin; row < end; ++row) {
        y[n * y_stride + row] =
            dot<format>(w.data + row * row_bytes, x.values + n * x.value_stride, w.columns);
      }
    }
    return;
  }
  DCHECK(begin % tile_rows == 0);
  const int64_t groups = padded_columns(w.columns) / group_columns;
  const int64_t scale_bytes = format == BlockFormat::q8 ? 0 : padded_rows(w.rows) * 4;
  const uint8_t* blocks = w.data + scale_bytes;
  for (int64_t n = 0; n < x.row_count; ++n) {
    const int8_t* codes = x.codes + n * groups * group_columns;
    const float* scales = x.scales + n * groups;
    for (int64_t tile = begin / tile_rows; tile * tile_rows < end; ++tile) {
      float chains[tile_rows] = {};
      for (int64_t group = 0; group < groups; ++group) {
        const Block block =
            unpack<format>(blocks + (tile * groups + group) * block_bytes(format));
        add_group(block, codes + group * group_columns, scales[group], chains);
      }
      for (int64_t i = 0; i < tile_rows && tile * tile_rows + i < end; ++i) {
        const int64_t row = tile * tile_rows + i;
        y[n * y_stride + row] = format == BlockFormat::q8
                                    ? chains[i]
                                    : load_f32(w.data + row * 4) * chains[i];
      }
    }
  }
}

template <BlockFormat format>
void gate_up(const Matrix& w, const Activations& x, float* y, int64_t y_stride, int64_t begin,
             int64_t end) {
  if constexpr (!is_quantised(format)) {
    const int64_t row_bytes = w.columns * element_bytes(format);
    for (int64_t n = 0; n < x.row_count; ++n) {
      const float* values = x.values + n * x.value_stride;
      for (int64_t row = begin; row < end; ++row) {
        const float gate = dot<format>(w.data + row * row_bytes, values, w.columns);
        const float up = dot<format>(w.data + (w.rows + row) * row_bytes, values, w.columns);
        y[n * y_stride + row] = scalar::silu_f32(gate) * up;
      }
    }
    return;
  }
  DCHECK(begin % tile_rows == 0);
  const int64_t groups = padded_columns(w.columns) / group_columns;
  const int64_t scale_bytes = format == BlockFormat::q8 ? 0 : 2 * padded_rows(w.rows) * 4;
  const uint8_t* blocks = w.data + scale_bytes;
  for (int64_t n = 0; n < x.row_count; ++n) {
    const int8_t* codes = x.codes + n * groups * group_columns;
    const float* scales = x.scales + n * groups;
    for (int64_t tile = begin / tile_rows; tile * tile_rows < end; ++tile) {
      float gates[tile_rows] = {}, ups[tile_rows] = {};
      for (int64_t group = 0; group < groups; ++group) {
        const uint8_t* pair = blocks + (tile * groups + group) * 2 * block_bytes(format);
        add_group(unpack<format>(pair), codes + group * group_columns, scales[group], gates);
        add_group(unpack<format>(pair + block_bytes(format)), codes + group * group_columns,
                  scales[group], ups);
      }
      for (int64_t i = 0; i < tile_rows && tile * tile_rows + i < end; ++i) {
        float gate = gates[i], up = ups[i];
        if constexpr (format != BlockFormat::q8) {
          const uint8_t* row_scales = w.data + tile * 2 * tile_rows * 4;
          gate = load_f32(row_scales + i * 4) * gate;
          up = load_f32(row_scales + (tile_rows + i) * 4) * up;
        }
        y[n * y_stride + tile * tile_rows + i] = scalar::silu_f32(gate) * up;
      }
    }
  }
}

template <BlockFormat format>
void embedding_row(const uint8_t* row, int64_t columns, float* out) {
  if constexpr (!is_quantised(format)) {
    for (int64_t i = 0; i < columns; ++i) out[i] = element<format>(row, i);
  } else {  // q8; nl4 and nl5 have no row form
    for (int64_t i = 0; i < columns; ++i) {
      const uint8_t* group = row + i / group_columns * 34;
      const auto code = static_cast<int8_t>(group[2 + i % group_columns]);
      out[i] = f16_to_f32(load_u16(group)) * static_cast<float>(code);
    }
  }
}

void quantise(const float* values, int64_t value_stride, int64_t row_count, int64_t columns,
              int8_t* codes, float* scales, int32_t* sums) {
  const int64_t padded = padded_columns(columns), groups = padded / group_columns;
  for (int64_t n = 0; n < row_count; ++n) {
    for (int64_t group = 0; group < groups; ++group) {
      const float* x = values + n * value_stride + group * group_columns;
      const int64_t count = columns - group * group_columns;
      int8_t* out = codes + n * padded + group * group_columns;
      float amax = 0;
      for (int64_t i = 0; i < group_columns && i < count; ++i) {
        const float magnitude = std::fabs(x[i]);
        if (magnitude > amax) amax = magnitude;
      }
      const float scale = amax / 127.0F;
      int32_t sum = 0;
      for (int64_t i = 0; i < group_columns; ++i) {
        float code = 0;
        if (i < count && scale > 0) code = std::nearbyintf(x[i] / scale);
        if (!(code >= -127.0F)) code = -127.0F;  // NaN too: the score it makes is caught later
        if (code > 127.0F) code = 127.0F;
        out[i] = static_cast<int8_t>(code);
        sum += out[i];
      }
      scales[n * groups + group] = scale;
      sums[n * groups + group] = sum;
    }
  }
}

float dot_f32(const float* a, const float* b, int64_t n) {
  return dot<BlockFormat::f32>(reinterpret_cast<const uint8_t*>(a), b, n);
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float mean = dot_f32(x, x, n) / static_cast<float>(n);
  const float factor = 1.0F / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                float* out) {
  float lane[lanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % lanes] = std::fmaf(x[i], 1.0F, lane[i % lanes]);
  const float mean = sum_lanes(lane) / static_cast<float>(n);
  float square[lanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float centred = x[i] - mean;
    square[i % lanes] = std::fmaf(centred, centred, square[i % lanes]);
  }
  const float factor = 1.0F / std::sqrt(sum_lanes(square) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

void rotate(float* x, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = b * cos[j] + a * sin[j];
  }
}

void add_scaled(float* y, const float* x, float weight, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::fmaf(weight, x[i], y[i]);
}

void sigmoid(const float* x, int64_t n, float* s) {
  for (int64_t i = 0; i < n; ++i) s[i] = scalar::sigmoid_f32(x[i]);
}

float exp_and_sum(float* x, int64_t n, float max) {
  float lane[lanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = exp_f32(x[i] - max);
    lane[i % lanes] = std::fmaf(x[i], 1.0F, lane[i % lanes]);
  }
  return sum_lanes(lane);
}

void to_f16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_f16(x[i]);
}

void from_f16(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(x[i]);
}

const uint8_t* cached(const CacheView& cache, int64_t position) {
  return cache.blocks[position / cache_block_tokens] +
         position % cache_block_tokens * cache.width * (cache.is_f32 ? 4 : 2);
}

float cached_dot(const CacheView& cache, int64_t position, const float* query) {
  const uint8_t* key = cached(cache, position);
  return cache.is_f32 ? dot<BlockFormat::f32>(key, query, cache.width)
                      : dot<BlockFormat::f16>(key, query, cache.width);
}

void attend(const AttentionInput& in, float* out, int64_t begin, int64_t end) {
  constexpr int64_t tile_keys = 64;
  const int64_t width = in.latent + in.rope;
  for (int64_t head = begin; head < end; ++head) {
    float* sum = out + head * in.latent;
    for (int64_t i = 0; i < in.latent; ++i) sum[i] = 0;
    float max = 0, total = 0;
    for (int64_t tile = 0; tile < in.key_count; tile += tile_keys) {
      const int64_t count = in.key_count - tile < tile_keys ? in.key_count - tile : tile_keys;
      float weights[tile_keys];
      float tile_max = 0;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t position = in.positions == nullptr ? tile + k : in.positions[tile + k];
        weights[k] = cached_dot(in.cache, position, in.queries + head * width) * in.scale;
        if (k == 0 || weights[k] > tile_max) tile_max = weights[k];
      }
      const float new_max = tile == 0 || tile_max > max ? tile_max : max;
      const float correction = tile == 0 ? 1.0F : exp_f32(max - new_max);
      max = new_max;
      total = std::fmaf(total, correction, exp_and_sum(weights, count, max));
      for (int64_t i = 0; i < in.latent; ++i) sum[i] = sum[i] * correction;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t position = in.positions == nullptr ? tile + k : in.positions[tile + k];
        const uint8_t* key = cached(in.cache, position);
        for (int64_t i = 0; i < in.latent; ++i) {
          const float value = in.cache.is_f32 ? element<BlockFormat::f32>(key, i)
                                              : element<BlockFormat::f16>(key, i);
          sum[i] = std::fmaf(weights[k], value, sum[i]);
        }
      }
    }
    const float factor = 1.0F / total;
    for (int64_t i = 0; i < in.latent; ++i) sum[i] = sum[i] * factor;
  }
}

void index_scores(const float* queries, const float* head_weights, int64_t heads,
                  const CacheView& keys, float scale, float* scores, int64_t begin, int64_t end) {
  for (int64_t position = begin; position < end; ++position) {
    float score = 0;
    for (int64_t head = 0; head < heads; ++head) {
      const float product = cached_dot(keys, position, queries + head * keys.width) * scale;
      score = std::fmaf(head_weights[head], product > 0 ? product : 0.0F, score);
    }
    scores[position] = score;
  }
}

constexpr KernelTable table{
    .name = "scalar",
    .quantise = quantise,
    .matmul = {matmul<BlockFormat::f32>, matmul<BlockFormat::f16>, matmul<BlockFormat::bf16>,
               matmul<BlockFormat::q8>, matmul<BlockFormat::nl5>, matmul<BlockFormat::nl4>},
    .gate_up = {gate_up<BlockFormat::f32>, gate_up<BlockFormat::f16>, gate_up<BlockFormat::bf16>,
                gate_up<BlockFormat::q8>, gate_up<BlockFormat::nl5>, gate_up<BlockFormat::nl4>},
    .embedding_row = {embedding_row<BlockFormat::f32>, embedding_row<BlockFormat::f16>,
                      embedding_row<BlockFormat::bf16>, embedding_row<BlockFormat::q8>, nullptr,
                      nullptr},
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .rotate = rotate,
    .add_scaled = add_scaled,
    .sigmoid = sigmoid,
    .exp_and_sum = exp_and_sum,
    .to_f16 = to_f16,
    .from_f16 = from_f16,
    .attend = attend,
    .index_scores = index_scores,
};

}  // namespace

const KernelTable& scalar_kernels() { return table; }

}  // namespace glmd
