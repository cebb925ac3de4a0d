#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "random_values.h"

namespace glmd {
namespace {

// Nearest e4m3 value (3 mantissa bits, smallest normal 2^-6, largest 448).
float round_to_e4m3(float value) {
  const float magnitude = std::fabs(value);
  if (magnitude == 0.0f) return 0.0f;
  const int exponent = std::max(std::ilogb(magnitude), -6);
  const float step = std::ldexp(1.0f, exponent - 3);
  return std::copysign(std::min(448.0f, std::nearbyint(magnitude / step) * step), value);
}

// Gaussian weights after FP8 with a scale per 128 x 128.
std::vector<float> fp8_weights(int64_t rows, int64_t columns, uint32_t seed) {
  RandomValues random(seed);
  std::vector<float> values = random.gaussians(rows * columns, 0.02f);
  for (int64_t top = 0; top < rows; top += 128) {
    for (int64_t left = 0; left < columns; left += 128) {
      float largest = 0.0f;
      const auto each = [&](auto&& change) {
        for (int64_t r = top; r < std::min(top + 128, rows); ++r) {
          for (int64_t c = left; c < std::min(left + 128, columns); ++c) {
            change(values[static_cast<size_t>(r * columns + c)]);
          }
        }
      };
      each([&](float value) { largest = std::max(largest, std::fabs(value)); });
      const float scale = largest / 448.0f;
      each([&](float& value) { value = round_to_e4m3(value / scale) * scale; });
    }
  }
  return values;
}

double relative_rms_error(const std::vector<float>& wanted, const std::vector<float>& got) {
  double error = 0, power = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double off = static_cast<double>(got[i]) - wanted[i];
    error += off * off;
    power += static_cast<double>(wanted[i]) * wanted[i];
  }
  return std::sqrt(error / power);
}

std::vector<float> through(BlockFormat format, const std::vector<float>& values, int64_t rows,
                           int64_t columns) {
  AlignedBytes bytes(matrix_bytes(format, rows, columns));
  encode_matrix(format, values.data(), rows, columns, bytes.data());
  std::vector<float> decoded(values.size());
  decode_matrix(format, bytes.data(), rows, columns, decoded.data());
  return decoded;
}

TEST(BlockEncoder, errors_on_fp8_weights_are_those_the_formats_promise) {
  const int64_t rows = 256, columns = 2048;
  const std::vector<float> weights = fp8_weights(rows, columns, 1);
  const double nl4 = relative_rms_error(weights, through(BlockFormat::nl4, weights, rows, columns));
  const double nl5 = relative_rms_error(weights, through(BlockFormat::nl5, weights, rows, columns));
  const double q8 = relative_rms_error(weights, through(BlockFormat::q8, weights, rows, columns));
  RecordProperty("nl4_error", std::to_string(nl4));
  printf("relative RMS error: nl4 %.2f %%, nl5 %.2f %%, q8 %.2f %%\n", 100 * nl4, 100 * nl5,
         100 * q8);
  EXPECT_LE(nl4, 0.076);
  EXPECT_LE(nl5, 0.039);
  EXPECT_LE(q8, 0.007);
}

TEST(BlockEncoder, f32_is_kept_and_16_bit_formats_keep_what_they_can_hold) {
  RandomValues random(2);
  std::vector<float> values = random.gaussians(7 * 33);
  EXPECT_EQ(through(BlockFormat::f32, values, 7, 33), values);
  EXPECT_LE(relative_rms_error(values, through(BlockFormat::f16, values, 7, 33)), 0x1p-11);
  EXPECT_LE(relative_rms_error(values, through(BlockFormat::bf16, values, 7, 33)), 0x1p-8);
  for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
  EXPECT_EQ(through(BlockFormat::bf16, values, 7, 33), values);
}

TEST(BlockEncoder, any_shape_comes_back) {
  RandomValues random(3);
  for (const BlockFormat format : all_formats) {
    for (const int64_t rows : {1, 7, 8, 9, 17}) {
      for (const int64_t columns : {1, 5, 31, 32, 33, 100}) {
        const std::vector<float> values = random.gaussians(rows * columns);
        const double error = relative_rms_error(values, through(format, values, rows, columns));
        EXPECT_LE(error, 0.16) << format_name(format) << " " << rows << "x" << columns;
      }
    }
  }
}

TEST(BlockEncoder, zero_rows_and_zero_groups_are_zero_again) {
  const int64_t rows = 9, columns = 96;
  RandomValues random(4);
  std::vector<float> values = random.gaussians(rows * columns);
  std::fill_n(values.begin() + 2 * columns, columns, 0.0f);    // a row
  std::fill_n(values.begin() + 5 * columns + 32, 32, 0.0f);    // a group
  std::fill_n(values.begin() + 8 * columns, columns, 1e-40f);  // too small for a scale
  for (const BlockFormat format : {BlockFormat::q8, BlockFormat::nl5, BlockFormat::nl4}) {
    const std::vector<float> decoded = through(format, values, rows, columns);
    for (int64_t c = 0; c < columns; ++c) {
      ASSERT_EQ(decoded[static_cast<size_t>(2 * columns + c)], 0.0f);
      ASSERT_EQ(decoded[static_cast<size_t>(8 * columns + c)], 0.0f);
    }
    for (int64_t c = 32; c < 64; ++c)
      ASSERT_EQ(decoded[static_cast<size_t>(5 * columns + c)], 0.0f);
  }
}

TEST(BlockEncoder, gate_and_up_are_the_matrices_encoded_alone) {
  const int64_t rows = 19, columns = 75;
  RandomValues random(5);
  const std::vector<float> gate = random.gaussians(rows * columns),
                           up = random.gaussians(rows * columns);
  for (const BlockFormat format : all_formats) {
    AlignedBytes bytes(gate_up_bytes(format, rows, columns));
    encode_gate_up(format, gate.data(), up.data(), rows, columns, bytes.data());
    std::vector<float> gate_back(gate.size()), up_back(up.size());
    decode_gate_up(format, bytes.data(), rows, columns, gate_back.data(), up_back.data());
    EXPECT_EQ(gate_back, through(format, gate, rows, columns)) << format_name(format);
    EXPECT_EQ(up_back, through(format, up, rows, columns)) << format_name(format);
  }
}

TEST(BlockEncoder, embeddings_hold_the_same_values_as_matrices) {
  const int64_t rows = 5, columns = 75;
  RandomValues random(6);
  const std::vector<float> values = random.gaussians(rows * columns);
  for (const BlockFormat format :
       {BlockFormat::f32, BlockFormat::f16, BlockFormat::bf16, BlockFormat::q8}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * embedding_row_bytes(format, columns)));
    encode_embedding(format, values.data(), rows, columns, bytes.data());
    std::vector<float> decoded(values.size()), looked_up(values.size());
    decode_embedding(format, bytes.data(), rows, columns, decoded.data());
    for (int64_t r = 0; r < rows; ++r) {
      scalar_kernels().embedding_row[index_of(format)](
          bytes.data() + r * embedding_row_bytes(format, columns), columns,
          looked_up.data() + r * columns);
    }
    EXPECT_EQ(decoded, through(format, values, rows, columns)) << format_name(format);
    EXPECT_EQ(looked_up, decoded) << format_name(format);
  }
}

TEST(BlockEncoder, a_value_between_two_entries_takes_the_higher) {
  // The largest candidate of the row is amax x 1.08 / 63. Choosing amax = 63 / 1.08 x 127 gives a
  // row scale of about 1; what matters is that decoding never lands further away than half the gap
  // between entries.
  RandomValues random(7);
  const std::vector<float> values = random.gaussians(8 * 32);
  AlignedBytes bytes(matrix_bytes(BlockFormat::nl5, 8, 32));
  encode_matrix(BlockFormat::nl5, values.data(), 8, 32, bytes.data());
  std::vector<float> decoded(values.size());
  decode_matrix(BlockFormat::nl5, bytes.data(), 8, 32, decoded.data());
  for (int64_t r = 0; r < 8; ++r) {
    float row_scale;
    memcpy(&row_scale, bytes.data() + r * 4, 4);
    const uint8_t scale_byte = bytes.data()[32 + r];
    const float scale =
        row_scale * static_cast<float>(scale_byte & 127) * (scale_byte & 128 ? -1.0f : 1.0f);
    for (int64_t c = 0; c < 32; ++c) {
      const float value = values[static_cast<size_t>(r * 32 + c)];
      float least = std::numeric_limits<float>::infinity();
      for (const int8_t entry : nl5_table)
        least = std::min(least, std::fabs(value - scale * entry));
      EXPECT_NEAR(std::fabs(value - decoded[static_cast<size_t>(r * 32 + c)]), least, 1e-5f);
    }
  }
}

TEST(Half, every_f16_survives_the_way_to_f32_and_back) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const bool is_nan = (half & 0x7fff) > 0x7c00;
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), is_nan ? half | 0x200 : half);
    const float value = f16_to_f32(half);
    if (is_nan) continue;
    const int exponent = half >> 10 & 31;
    const double magnitude = exponent == 0    ? std::ldexp(half & 1023, -24)
                             : exponent == 31 ? std::numeric_limits<double>::infinity()
                                              : std::ldexp(1024 + (half & 1023), exponent - 25);
    ASSERT_EQ(value, half & 0x8000 ? -magnitude : magnitude);
  }
}

TEST(Half, rounding_is_to_nearest_and_ties_go_to_even) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = f16_to_f32(static_cast<uint16_t>(bits));
    const float high = f16_to_f32(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact
    ASSERT_EQ(f32_to_f16(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, low)), bits);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), bits + 1);
    ASSERT_EQ(f32_to_f16(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x8000);
  }
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3f80);  // half way between 1 and the next: even
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3f82);
}

}  // namespace
}  // namespace glmd
