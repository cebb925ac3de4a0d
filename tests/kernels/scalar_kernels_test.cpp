// The scalar table against double arithmetic.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "random_values.h"

namespace glmd {
namespace {

const KernelTable& kernels = scalar_kernels();
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t rows, columns;
};
constexpr Shape shapes[] = {{1, 1}, {1, 32}, {7, 31}, {8, 64}, {9, 33}, {20, 100}, {40, 256}};

double silu_of(double x) {
  return x / (1 + std::exp(-x));
}

// What the kernel sees: decoded weights, and activations after their own quantisation where the
// weight is quantised.
double reference_dot(BlockFormat format, const float* weights, const QuantisedRows& x,
                     int64_t row) {
  double sum = 0;
  for (int64_t c = 0; c < x.width; ++c) {
    const auto place = static_cast<size_t>(row * padded_columns(x.width) + c);
    const double value = is_quantised(format)
                             ? static_cast<double>(x.codes[place]) * x.scales[place / group_columns]
                             : x.values[static_cast<size_t>(row * x.width + c)];
    sum += weights[c] * value;
  }
  return sum;
}

TEST(ScalarKernels, matmul_is_the_dot_of_decoded_weights) {
  RandomValues random(11);
  for (const BlockFormat format : all_formats) {
    for (const auto [rows, columns] : shapes) {
      const std::vector<float> values = random.gaussians(rows * columns);
      AlignedBytes bytes(matrix_bytes(format, rows, columns));
      encode_matrix(format, values.data(), rows, columns, bytes.data());
      std::vector<float> decoded(values.size());
      decode_matrix(format, bytes.data(), rows, columns, decoded.data());
      const QuantisedRows x(kernels, random.gaussians(3 * columns), 3, columns);
      std::vector<float> y(static_cast<size_t>(3 * rows));
      kernels.matmul[index_of(format)]({bytes.data(), rows, columns, format}, x.view(), y.data(),
                                       rows, 0, rows);
      for (int64_t n = 0; n < 3; ++n) {
        for (int64_t r = 0; r < rows; ++r) {
          const double wanted = reference_dot(format, decoded.data() + r * columns, x, n);
          ASSERT_NEAR(y[static_cast<size_t>(n * rows + r)], wanted, 1e-4 + 1e-5 * std::fabs(wanted))
              << format_name(format) << " " << rows << "x" << columns;
        }
      }
    }
  }
}

TEST(ScalarKernels, gate_up_is_silu_of_gate_times_up) {
  RandomValues random(12);
  for (const BlockFormat format : all_formats) {
    for (const auto [rows, columns] : shapes) {
      const std::vector<float> gate = random.gaussians(rows * columns, 0.3f);
      const std::vector<float> up = random.gaussians(rows * columns, 0.3f);
      AlignedBytes bytes(gate_up_bytes(format, rows, columns));
      encode_gate_up(format, gate.data(), up.data(), rows, columns, bytes.data());
      std::vector<float> decoded_gate(gate.size()), decoded_up(up.size());
      decode_gate_up(format, bytes.data(), rows, columns, decoded_gate.data(), decoded_up.data());
      const QuantisedRows x(kernels, random.gaussians(2 * columns), 2, columns);
      std::vector<float> y(static_cast<size_t>(2 * rows));
      kernels.gate_up[index_of(format)]({bytes.data(), rows, columns, format}, x.view(), y.data(),
                                        rows, 0, rows);
      for (int64_t n = 0; n < 2; ++n) {
        for (int64_t r = 0; r < rows; ++r) {
          const double wanted =
              silu_of(reference_dot(format, decoded_gate.data() + r * columns, x, n)) *
              reference_dot(format, decoded_up.data() + r * columns, x, n);
          ASSERT_NEAR(y[static_cast<size_t>(n * rows + r)], wanted, 1e-4 + 1e-5 * std::fabs(wanted))
              << format_name(format) << " " << rows << "x" << columns;
        }
      }
    }
  }
}

TEST(ScalarKernels, quantised_activations_are_within_half_a_step) {
  RandomValues random(13);
  const int64_t columns = 75;
  const std::vector<float> values = random.gaussians(4 * columns);
  const QuantisedRows x(kernels, values, 4, columns);
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t group = 0; group < 3; ++group) {
      const float scale = x.scales[static_cast<size_t>(n * 3 + group)];
      int32_t sum = 0;
      for (int64_t c = group * 32; c < group * 32 + 32; ++c) {
        const int8_t code = x.codes[static_cast<size_t>(n * 96 + c)];
        sum += code;
        if (c >= columns) {
          ASSERT_EQ(code, 0);
        } else {
          ASSERT_NEAR(code * scale, values[static_cast<size_t>(n * columns + c)], scale * 0.50001f);
        }
      }
      ASSERT_EQ(sum, x.sums[static_cast<size_t>(n * 3 + group)]);
    }
  }
}

TEST(ScalarKernels, ties_of_activations_go_to_even_and_zero_groups_have_scale_zero) {
  std::vector<float> values(64, 0.0f);
  values[0] = 127.0f;
  values[1] = 0.5f;
  values[2] = 1.5f;
  values[3] = -2.5f;
  values[4] = -127.0f;
  const QuantisedRows x(kernels, values, 1, 64);
  EXPECT_EQ(x.scales[0], 1.0f);
  EXPECT_EQ(x.scales[1], 0.0f);
  EXPECT_EQ(std::vector<int8_t>(x.codes.begin(), x.codes.begin() + 6),
            (std::vector<int8_t>{127, 0, 2, -2, -127, 0}));
}

TEST(ScalarKernels, a_group_with_infinity_makes_the_dot_nan) {
  std::vector<float> values(64, 1.0f);
  values[40] = infinity;
  const QuantisedRows x(kernels, values, 1, 64);
  const std::vector<float> weights(64, 1.0f);
  for (const BlockFormat format : {BlockFormat::q8, BlockFormat::nl5, BlockFormat::nl4}) {
    AlignedBytes bytes(matrix_bytes(format, 1, 64));
    encode_matrix(format, weights.data(), 1, 64, bytes.data());
    float y = 0.0f;
    kernels.matmul[index_of(format)]({bytes.data(), 1, 64, format}, x.view(), &y, 1, 0, 1);
    EXPECT_TRUE(std::isnan(y)) << format_name(format);
  }
}

TEST(ScalarKernels, extreme_q8_codes_are_exact) {
  const int64_t columns = 6144;
  const std::vector<float> weights(columns, -127.0f), ones(columns, 127.0f);
  AlignedBytes bytes(matrix_bytes(BlockFormat::q8, 1, columns));
  encode_matrix(BlockFormat::q8, weights.data(), 1, columns, bytes.data());
  const QuantisedRows x(kernels, ones, 1, columns);
  float y = 0.0f;
  kernels.matmul[index_of(BlockFormat::q8)]({bytes.data(), 1, columns, BlockFormat::q8}, x.view(),
                                            &y, 1, 0, 1);
  EXPECT_NEAR(y, -127.0 * 127.0 * columns, 127.0 * columns * 1e-5);
}

TEST(ScalarKernels, exp_is_within_two_units_in_the_last_place) {
  double worst = 0;
  for (double x = -87.3; x < 88.7; x += 0.000917) {
    float e = static_cast<float>(x);
    const double wanted = std::exp(static_cast<double>(e));
    kernels.exp_and_sum(&e, 1, 0.0f);
    const double unit = std::ldexp(1.0, std::ilogb(wanted) - 23);
    worst = std::max(worst, std::fabs(e - wanted) / unit);
  }
  printf("exp: largest error %.3f units in the last place\n", worst);
  EXPECT_LE(worst, 2.0);
}

TEST(ScalarKernels, exp_and_sigmoid_reach_their_limits) {
  std::vector<float> x = {-infinity, -1000.0f, -87.4f, 0.0f, 88.8f, infinity, std::nanf("")};
  std::vector<float> s(x.size());
  kernels.sigmoid(x.data(), static_cast<int64_t>(x.size()), s.data());
  EXPECT_EQ(s[0], 0.0f);
  EXPECT_EQ(s[1], 0.0f);
  EXPECT_EQ(s[3], 0.5f);
  EXPECT_EQ(s[5], 1.0f);
  EXPECT_TRUE(std::isnan(s[6]));
  kernels.exp_and_sum(x.data(), static_cast<int64_t>(x.size()), 0.0f);
  EXPECT_EQ(x[0], 0.0f);
  EXPECT_EQ(x[1], 0.0f);
  EXPECT_EQ(x[2], 0.0f);
  EXPECT_EQ(x[3], 1.0f);
  EXPECT_EQ(x[4], infinity);
  EXPECT_EQ(x[5], infinity);
  EXPECT_TRUE(std::isnan(x[6]));
}

TEST(ScalarKernels, norms_match_double_arithmetic) {
  RandomValues random(14);
  for (const int64_t n : {1, 5, 16, 100, 6144}) {
    const std::vector<float> x = random.gaussians(n), weight = random.gaussians(n),
                             bias = random.gaussians(n);
    double squares = 0, total = 0, deviations = 0;
    for (const float value : x) squares += static_cast<double>(value) * value, total += value;
    const double mean = total / static_cast<double>(n);
    for (const float value : x) deviations += (value - mean) * (value - mean);
    std::vector<float> rms(x.size()), layer(x.size());
    kernels.rms_norm(x.data(), weight.data(), n, 1e-5f, rms.data());
    kernels.layer_norm(x.data(), weight.data(), bias.data(), n, 1e-5f, layer.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(rms[i], x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * weight[i],
                  2e-5);
      ASSERT_NEAR(
          layer[i],
          (x[i] - mean) / std::sqrt(deviations / static_cast<double>(n) + 1e-5) * weight[i] +
              bias[i],
          2e-5);
    }
  }
}

TEST(ScalarKernels, rotation_turns_adjacent_pairs) {
  std::vector<float> x = {1.0f, 0.0f, 0.0f, 2.0f};
  const std::vector<float> cos = {0.0f, 0.6f}, sin = {1.0f, 0.8f};
  kernels.rotate(x.data(), cos.data(), sin.data(), 2);
  EXPECT_EQ(x, (std::vector<float>{0.0f, 1.0f, -1.6f, 1.2f}));
}

TEST(ScalarKernels, attention_is_the_softmax_average_of_latents) {
  RandomValues random(15);
  const int64_t heads = 3, latent = 40, rope = 8;
  for (const CacheRow& row : {CacheRow{latent + rope, true}, CacheRow{latent + rope, false},
                              CacheRow{latent + rope, false, latent}}) {
    for (const int64_t key_count : {1, 2, 63, 64, 65, 200, 700}) {
      const Cache cache(random, 1100, row);
      std::vector<int32_t> positions;
      for (int64_t k = 0; k < key_count; ++k) positions.push_back(static_cast<int32_t>(k + k / 2));
      const std::vector<float> queries = random.gaussians(heads * (latent + rope));
      const AttentionInput input = {queries.data(),   heads,     latent, rope, cache.view(),
                                    positions.data(), key_count, 0.3f};
      const std::vector<float> out = attend(kernels, input);
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> weights;
        double max = -1e300, sum = 0;
        for (const int32_t position : positions) {
          double score = 0;
          for (int64_t i = 0; i < latent + rope; ++i) {
            score += queries[static_cast<size_t>(h * (latent + rope) + i)] * cache.at(position, i);
          }
          weights.push_back(score * 0.3f);
          max = std::max(max, weights.back());
        }
        for (double& weight : weights) sum += weight = std::exp(weight - max);
        for (int64_t i = 0; i < latent; ++i) {
          double wanted = 0;
          for (size_t k = 0; k < weights.size(); ++k)
            wanted += weights[k] / sum * cache.at(positions[k], i);
          ASSERT_NEAR(out[static_cast<size_t>(h * latent + i)], wanted, 2e-5) << key_count;
        }
      }
    }
  }
}

TEST(ScalarKernels, attention_without_keys_is_zero) {
  const std::vector<float> queries(16, 1.0f);
  EXPECT_EQ(attend(kernels, {queries.data(), 1, 12, 4, {nullptr, {16, true}}, nullptr, 0, 1.0f}),
            std::vector<float>(12, 0.0f));
}

TEST(ScalarKernels, attention_to_all_positions_needs_no_list) {
  RandomValues random(16);
  const int64_t heads = 2, latent = 32, rope = 16;
  const Cache cache(random, 150, {latent + rope});
  const std::vector<float> queries = random.gaussians(heads * (latent + rope));
  std::vector<int32_t> positions(150);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  AttentionInput input = {queries.data(),   heads, latent, rope, cache.view(),
                          positions.data(), 150,   0.2f};
  const std::vector<float> with = attend(kernels, input);
  input.positions = nullptr;
  const std::vector<float> without = attend(kernels, input);
  EXPECT_EQ(with, without);
}

TEST(ScalarKernels, index_scores_sum_positive_parts_of_heads) {
  RandomValues random(17);
  const int64_t heads = 5, width = 48;
  const Cache cache(random, 100, {width});
  const std::vector<float> queries = random.gaussians(heads * width),
                           weights = random.gaussians(heads);
  std::vector<float> scores(100, -1.0f);
  AlignedBytes scratch(index_scratch_floats(heads, width) * 4);
  kernels.index_scores(queries.data(), weights.data(), heads, cache.view(), 0.25f,
                       reinterpret_cast<float*>(scratch.data()), scores.data(), 10, 90);
  EXPECT_EQ(scores[9], -1.0f);
  EXPECT_EQ(scores[90], -1.0f);
  for (int64_t t = 10; t < 90; ++t) {
    double wanted = 0;
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t i = 0; i < width; ++i)
        dot += queries[static_cast<size_t>(h * width + i)] * cache.at(t, i);
      wanted += weights[static_cast<size_t>(h)] * std::max(0.0, dot * 0.25);
    }
    ASSERT_NEAR(scores[static_cast<size_t>(t)], wanted, 1e-4);
  }
}

}  // namespace
}  // namespace glmd
