// Seeded values for kernel tests: the same on every machine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/block_encoder.h"
#include "kernels/half.h"
#include "kernels/kernel_table.h"

namespace glmd {

class RandomValues {
 public:
  explicit RandomValues(uint32_t seed) : engine_(seed) {}

  uint32_t bits() { return static_cast<uint32_t>(engine_()); }
  float uniform() { return (static_cast<float>(bits() >> 8) + 0.5f) * 0x1p-24f; }
  float gaussian() {
    const float radius = std::sqrt(-2.0f * std::log(uniform()));
    return radius * std::cos(6.28318531f * uniform());
  }
  std::vector<float> gaussians(int64_t n, float deviation = 1.0f) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = deviation * gaussian();
    return values;
  }

 private:
  std::mt19937 engine_;
};

// Bytes at a 64-byte boundary, as kernels want them.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t n) : storage_(static_cast<size_t>(n) + 64) {}
  uint8_t* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + ((address + 63) / 64 * 64 - address);
  }

 private:
  std::vector<uint8_t> storage_;
};

// Rows of activations with everything a kernel may read.
struct QuantisedRows {
  QuantisedRows(const KernelTable& kernels, const std::vector<float>& input, int64_t row_count,
                int64_t columns)
      : values(input),
        codes(static_cast<size_t>(row_count * padded_columns(columns))),
        scales(static_cast<size_t>(row_count * padded_columns(columns) / group_columns)),
        sums(scales.size()),
        rows(row_count),
        width(columns) {
    kernels.quantise(values.data(), columns, row_count, columns, codes.data(), scales.data(),
                     sums.data());
  }
  Activations view(int64_t first, int64_t count) const {
    const int64_t groups = padded_columns(width) / group_columns;
    return {.values = values.data() + first * width,
            .value_stride = width,
            .codes = codes.data() + first * groups * group_columns,
            .scales = scales.data() + first * groups,
            .sums = sums.data() + first * groups,
            .row_count = count,
            .columns = width};
  }
  Activations view() const { return view(0, rows); }

  std::vector<float> values;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  int64_t rows, width;
};

// A latent cache of random tokens.
struct Cache {
  Cache(RandomValues& random, int64_t tokens, const CacheRow& of) : row(of) {
    for (int64_t first = 0; first < tokens; first += cache_block_tokens) {
      std::vector<uint8_t> block(static_cast<size_t>(cache_block_tokens * row.bytes()));
      for (int64_t token = 0; token < cache_block_tokens; ++token)
        fill(random, block.data() + token * row.bytes());
      storage.push_back(std::move(block));
    }
    for (const auto& block : storage) blocks.push_back(block.data());
  }
  void fill(RandomValues& random, uint8_t* token) const {
    const int64_t codes = padded_columns(row.coded);
    for (int64_t i = 0; i < codes; ++i) token[i] = static_cast<uint8_t>(random.bits() >> 24);
    for (int64_t i = 0; i < codes / group_columns; ++i) {
      const float scale = std::fabs(random.gaussian()) / 80;
      memcpy(token + codes + i * 4, &scale, 4);
    }
    for (int64_t i = 0; i < row.width - row.coded; ++i) {
      const float value = random.gaussian();
      const uint16_t half = f32_to_f16(value);
      uint8_t* others = token + row.coded_bytes();
      if (row.is_f32) memcpy(others + i * 4, &value, 4);
      if (!row.is_f32) memcpy(others + i * 2, &half, 2);
    }
  }
  CacheView view() const { return {blocks.data(), row}; }
  double at(int64_t position, int64_t i) const {
    const uint8_t* token = blocks[static_cast<size_t>(position / 64)] + position % 64 * row.bytes();
    if (i < row.coded) {
      float scale;
      memcpy(&scale, token + padded_columns(row.coded) + i / group_columns * 4, 4);
      return static_cast<float>(static_cast<int8_t>(token[i])) * scale;
    }
    const uint8_t* others = token + row.coded_bytes();
    if (row.is_f32) return reinterpret_cast<const float*>(others)[i - row.coded];
    return f16_to_f32(reinterpret_cast<const uint16_t*>(others)[i - row.coded]);
  }
  CacheRow row;
  std::vector<std::vector<uint8_t>> storage;
  std::vector<const uint8_t*> blocks;
};

// States of attention for each of `count` runs of spans.
struct AttentionStates {
  AttentionStates(int64_t count, int64_t heads, int64_t latent)
      : floats(static_cast<size_t>(count * heads * (latent + 2)), -3.0f) {
    for (int64_t i = 0; i < count; ++i) {
      float* max = floats.data() + i * heads * (latent + 2);
      states.push_back({max, max + heads, max + 2 * heads});
    }
  }
  std::vector<float> floats;
  std::vector<AttentionState> states;
};

// Heads [begin, end), all spans at once or each by itself; the other heads keep -3.
inline std::vector<float> attend(const KernelTable& kernels, const AttentionInput& input,
                                 int64_t begin, int64_t end, bool each_span_alone) {
  const int64_t spans = attention_span_count(input.key_count);
  const int64_t runs = spans == 0 ? 0 : each_span_alone ? spans : 1;
  AlignedBytes scratch(attention_scratch_floats(input.heads, input.latent, input.rope) * 4);
  AttentionStates parts(runs, input.heads, input.latent);
  for (int64_t i = 0; i < runs; ++i) {
    kernels.attend_spans(input, i, each_span_alone ? i + 1 : spans, begin, end,
                         reinterpret_cast<float*>(scratch.data()),
                         parts.states[static_cast<size_t>(i)]);
  }
  std::vector<float> out(static_cast<size_t>(input.heads * input.latent), -3.0f);
  kernels.finish_attention(parts.states.data(), runs, input.latent, begin, end, out.data());
  return out;
}

inline std::vector<float> attend(const KernelTable& kernels, const AttentionInput& input) {
  return attend(kernels, input, 0, input.heads, false);
}

// The first head and the others, each span alone.
inline std::vector<float> attend_in_parts(const KernelTable& kernels, const AttentionInput& input) {
  std::vector<float> out = attend(kernels, input, 0, 1, true);
  const std::vector<float> rest = attend(kernels, input, 1, input.heads, true);
  std::copy(rest.begin() + input.latent, rest.end(), out.begin() + input.latent);
  return out;
}

inline const char* format_name(BlockFormat format) {
  constexpr const char* names[block_format_count] = {"f32", "f16", "bf16", "q8", "nl5", "nl4"};
  return names[static_cast<int>(format)];
}

constexpr BlockFormat all_formats[block_format_count] = {BlockFormat::f32,  BlockFormat::f16,
                                                         BlockFormat::bf16, BlockFormat::q8,
                                                         BlockFormat::nl5,  BlockFormat::nl4};

inline size_t index_of(BlockFormat format) {
  return static_cast<size_t>(format);
}

}  // namespace glmd
