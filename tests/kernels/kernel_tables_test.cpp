// What every table promises: the bits of the scalar one, whatever the batch, the split and the
// shape.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/half.h"
#include "random_values.h"

namespace glmd {
namespace {

class KernelTables : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = find_kernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this CPU has no " << GetParam();
    ASSERT_STREQ(kernels_->name, GetParam());
  }
  const KernelTable& kernels() { return *kernels_; }
  const KernelTable& scalar() { return scalar_kernels(); }

  const KernelTable* kernels_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(All, KernelTables, testing::Values("scalar", "avx2", "avx512"),
                         [](const auto& suite) { return std::string(suite.param); });

// NaN is NaN, whatever its sign and payload.
void expect_same_bits(const std::vector<float>& got, const std::vector<float>& wanted,
                      const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(wanted[i])) continue;
    uint32_t got_bits, wanted_bits;
    memcpy(&got_bits, &got[i], 4);
    memcpy(&wanted_bits, &wanted[i], 4);
    ASSERT_EQ(got_bits, wanted_bits)
        << what << ", element " << i << ": " << got[i] << " for " << wanted[i];
  }
}

struct Shape {
  int64_t rows, columns;
};
constexpr Shape shapes[] = {{1, 1},    {1, 32},   {7, 31},   {8, 64},  {9, 33},
                            {20, 100}, {24, 160}, {40, 256}, {13, 517}};
constexpr int64_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 21, 64};

// A weight matrix, or gate and up, with values of several sizes, zeros among them.
std::vector<float> weights_of(RandomValues& random, int64_t n) {
  std::vector<float> values = random.gaussians(n);
  for (float& value : values) {
    if (random.bits() % 16 == 0) value = 0.0f;
    if (random.bits() % 64 == 0) value *= 20.0f;
  }
  return values;
}

TEST_P(KernelTables, matmul_has_the_bits_of_scalar) {
  RandomValues random(21);
  for (const BlockFormat format : all_formats) {
    for (const auto [rows, columns] : shapes) {
      const std::vector<float> values = weights_of(random, rows * columns);
      AlignedBytes bytes(matrix_bytes(format, rows, columns));
      encode_matrix(format, values.data(), rows, columns, bytes.data());
      const Matrix w = {bytes.data(), rows, columns, format};
      for (const int64_t n : row_counts) {
        const QuantisedRows x(scalar(), random.gaussians(n * columns), n, columns);
        const int64_t stride = rows + 3;
        std::vector<float> got(static_cast<size_t>(n * stride), -7.0f), wanted = got;
        kernels().matmul[index_of(format)](w, x.view(), got.data(), stride, 0, rows);
        scalar().matmul[index_of(format)](w, x.view(), wanted.data(), stride, 0, rows);
        expect_same_bits(got, wanted,
                         std::string(format_name(format)) + " " + std::to_string(rows) + "x" +
                             std::to_string(columns) + " with " + std::to_string(n) + " rows");
      }
    }
  }
}

TEST_P(KernelTables, gate_up_has_the_bits_of_scalar) {
  RandomValues random(22);
  for (const BlockFormat format : all_formats) {
    for (const auto [rows, columns] : shapes) {
      const std::vector<float> gate = weights_of(random, rows * columns),
                               up = weights_of(random, rows * columns);
      AlignedBytes bytes(gate_up_bytes(format, rows, columns));
      encode_gate_up(format, gate.data(), up.data(), rows, columns, bytes.data());
      const Matrix w = {bytes.data(), rows, columns, format};
      for (const int64_t n : row_counts) {
        const QuantisedRows x(scalar(), random.gaussians(n * columns), n, columns);
        const int64_t stride = rows + 3;
        std::vector<float> got(static_cast<size_t>(n * stride), -7.0f), wanted = got;
        kernels().gate_up[index_of(format)](w, x.view(), got.data(), stride, 0, rows);
        scalar().gate_up[index_of(format)](w, x.view(), wanted.data(), stride, 0, rows);
        expect_same_bits(got, wanted,
                         std::string(format_name(format)) + " " + std::to_string(rows) + "x" +
                             std::to_string(columns) + " with " + std::to_string(n) + " rows");
      }
    }
  }
}

TEST_P(KernelTables, rows_at_once_are_rows_one_by_one) {
  RandomValues random(23);
  const int64_t rows = 21, columns = 140, n = 11;
  for (const BlockFormat format : all_formats) {
    const std::vector<float> values = weights_of(random, rows * columns);
    AlignedBytes bytes(matrix_bytes(format, rows, columns));
    encode_matrix(format, values.data(), rows, columns, bytes.data());
    const Matrix w = {bytes.data(), rows, columns, format};
    const QuantisedRows x(scalar(), random.gaussians(n * columns), n, columns);
    std::vector<float> together(static_cast<size_t>(n * rows)), alone(together.size());
    kernels().matmul[index_of(format)](w, x.view(), together.data(), rows, 0, rows);
    for (int64_t i = 0; i < n; ++i) {
      kernels().matmul[index_of(format)](w, x.view(i, 1), alone.data() + i * rows, rows, 0, rows);
    }
    expect_same_bits(together, alone, format_name(format));
  }
}

TEST_P(KernelTables, parts_of_the_output_make_the_whole) {
  RandomValues random(24);
  const int64_t rows = 37, columns = 96;
  for (const BlockFormat format : all_formats) {
    const std::vector<float> gate = weights_of(random, rows * columns),
                             up = weights_of(random, rows * columns);
    AlignedBytes bytes(matrix_bytes(format, rows, columns)),
        pair(gate_up_bytes(format, rows, columns));
    encode_matrix(format, gate.data(), rows, columns, bytes.data());
    encode_gate_up(format, gate.data(), up.data(), rows, columns, pair.data());
    const Matrix w = {bytes.data(), rows, columns, format},
                 both = {pair.data(), rows, columns, format};
    for (const int64_t n : {1, 3, 12, 66}) {
      const QuantisedRows x(scalar(), random.gaussians(n * columns), n, columns);
      std::vector<float> whole(static_cast<size_t>(n * rows)), parts(whole.size());
      std::vector<float> whole_pair(whole.size()), parts_pair(whole.size());
      kernels().matmul[index_of(format)](w, x.view(), whole.data(), rows, 0, rows);
      kernels().gate_up[index_of(format)](both, x.view(), whole_pair.data(), rows, 0, rows);
      for (const auto& [begin, end] :
           {std::pair<int64_t, int64_t>{0, 8}, {8, 8}, {8, 32}, {32, 37}}) {
        kernels().matmul[index_of(format)](w, x.view(), parts.data(), rows, begin, end);
        kernels().gate_up[index_of(format)](both, x.view(), parts_pair.data(), rows, begin, end);
      }
      expect_same_bits(parts, whole, format_name(format));
      expect_same_bits(parts_pair, whole_pair, format_name(format));
    }
  }
}

constexpr BlockFormat quantised_formats[] = {BlockFormat::q8, BlockFormat::nl5, BlockFormat::nl4};

// A matrix, and one of gate and up, of bytes that no encoder would choose: every code, every scale
// byte. q8 has scales that are finite.
struct RandomBlocks {
  RandomBlocks(RandomValues& random, BlockFormat format, int64_t rows, int64_t columns)
      : bytes(gate_up_bytes(format, rows, columns)),
        matmul{bytes.data(), 2 * padded_rows(rows), columns, format},
        gate_up{bytes.data(), rows, columns, format} {
    const int64_t size = gate_up_bytes(format, rows, columns);
    for (int64_t i = 0; i < size; ++i) bytes.data()[i] = static_cast<uint8_t>(random.bits());
    const int64_t row_scales = format == BlockFormat::q8 ? 0 : 2 * padded_rows(rows);
    for (int64_t i = 0; i < row_scales; ++i) {
      const float scale = random.gaussian();
      memcpy(bytes.data() + 4 * i, &scale, 4);
    }
    if (format != BlockFormat::q8) return;
    for (int64_t at = 0; at < size; at += block_bytes(format)) {
      for (int64_t row = 0; row < tile_rows; ++row) {
        const uint16_t scale = f32_to_f16(0.01f * random.gaussian());
        memcpy(bytes.data() + at + 2 * row, &scale, 2);
      }
    }
  }
  AlignedBytes bytes;
  Matrix matmul, gate_up;
};

// Rows whose codes are often as large as they get; now and then a group is all zero or not finite.
QuantisedRows rows_of_large_codes(RandomValues& random, int64_t n, int64_t columns) {
  std::vector<float> values(static_cast<size_t>(n * columns));
  for (float& value : values) {
    const uint32_t draw = random.bits() % 4;
    value = draw < 2 ? 1.0f : draw == 2 ? -1.0f : random.gaussian();
  }
  for (int64_t first = 0; first + group_columns <= n * columns; first += group_columns) {
    const uint32_t draw = random.bits() % 128;
    if (draw == 0) std::fill_n(values.begin() + first, group_columns, 0.0f);
    if (draw == 1) values[static_cast<size_t>(first)] = -INFINITY;
  }
  return QuantisedRows(scalar_kernels(), values, n, columns);
}

TEST_P(KernelTables, any_block_has_the_bits_of_scalar_with_any_number_of_rows) {
  RandomValues random(31);
  constexpr int64_t most_rows = 200;
  for (const BlockFormat format : quantised_formats) {
    for (const auto [rows, columns] : {Shape{3, 5}, {23, 330}, {70, 96}, {9, 1100}}) {
      const RandomBlocks blocks(random, format, rows, columns);
      const QuantisedRows x = rows_of_large_codes(random, most_rows, columns);
      for (const bool is_pair : {false, true}) {
        const Matrix& w = is_pair ? blocks.gate_up : blocks.matmul;
        const auto kernel_of = [&](const KernelTable& table) {
          return is_pair ? table.gate_up[index_of(format)] : table.matmul[index_of(format)];
        };
        const int64_t stride = w.rows + 5;
        std::vector<float> wanted(static_cast<size_t>(most_rows * stride), -7.0f);
        kernel_of(scalar())(w, x.view(), wanted.data(), stride, 0, w.rows);
        for (int64_t n = 0; n <= most_rows; n = n < 70 ? n + 1 : n + 65) {
          std::vector<float> got(static_cast<size_t>(n * stride), -7.0f);
          kernel_of(kernels())(w, x.view(most_rows - n, n), got.data(), stride, 0, w.rows);
          expect_same_bits(got, {wanted.end() - n * stride, wanted.end()},
                           std::string(format_name(format)) + (is_pair ? " gate and up " : " ") +
                               std::to_string(rows) + "x" + std::to_string(columns) + " with " +
                               std::to_string(n) + " rows");
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// More rows, columns and outputs than a kernel keeps in its buffers at once.
TEST_P(KernelTables, a_large_matrix_has_the_bits_of_scalar) {
  RandomValues random(32);
  const int64_t rows = 1043, columns = 550, n = 64;
  for (const BlockFormat format : quantised_formats) {
    const RandomBlocks blocks(random, format, rows, columns);
    const QuantisedRows x = rows_of_large_codes(random, n, columns);
    std::vector<float> got(static_cast<size_t>(n * rows)), wanted(got.size());
    const Matrix& w = blocks.gate_up;
    kernels().gate_up[index_of(format)](w, x.view(), got.data(), rows, 0, rows);
    scalar().gate_up[index_of(format)](w, x.view(), wanted.data(), rows, 0, rows);
    expect_same_bits(got, wanted, format_name(format));
  }
}

// Every product as large as it gets, with the same sign: what would overflow or saturate first.
TEST_P(KernelTables, extreme_codes_do_not_overflow) {
  const int64_t rows = 16, columns = 64;
  for (const BlockFormat format : quantised_formats) {
    for (const int weight_byte : {0x00, 0x7f, 0x81, 0xff}) {
      for (const float sign : {1.0f, -1.0f}) {
        for (const int64_t n : {1, 2, 9, 64}) {
          const std::vector<float> weights(static_cast<size_t>(rows * columns), 1.0f);
          AlignedBytes bytes(matrix_bytes(format, rows, columns));
          encode_matrix(format, weights.data(), rows, columns, bytes.data());
          const int64_t header = format == BlockFormat::q8 ? 0 : rows * 4;
          const int64_t scale_bytes = format == BlockFormat::q8 ? 16 : 8;
          const int64_t block = block_bytes(format);
          for (int64_t b = 0; b < rows * columns / (tile_rows * group_columns); ++b) {
            memset(bytes.data() + header + b * block + scale_bytes, weight_byte,
                   static_cast<size_t>(block - scale_bytes));
          }
          const QuantisedRows x(
              scalar(), std::vector<float>(static_cast<size_t>(n * columns), sign), n, columns);
          std::vector<float> got(static_cast<size_t>(n * rows)), wanted(got.size());
          const Matrix w = {bytes.data(), rows, columns, format};
          kernels().matmul[index_of(format)](w, x.view(), got.data(), rows, 0, rows);
          scalar().matmul[index_of(format)](w, x.view(), wanted.data(), rows, 0, rows);
          expect_same_bits(got, wanted, format_name(format));
        }
      }
    }
  }
}

TEST_P(KernelTables, quantise_has_the_bits_of_scalar) {
  RandomValues random(25);
  for (const int64_t columns : {1, 31, 32, 33, 64, 100, 517}) {
    std::vector<float> values = random.gaussians(5 * columns);
    for (float& value : values) {
      const uint32_t draw = random.bits() % 64;
      if (draw == 0) value *= 1e-38f;
      if (draw == 1) value = 0.5f;
      if (draw == 2) value *= 1e30f;
    }
    for (int64_t i = 0; i < columns; ++i) values[static_cast<size_t>(columns + i)] *= 1e-42f;
    for (int64_t i = 0; i < columns; ++i) values[static_cast<size_t>(2 * columns + i)] = 0.0f;
    values[static_cast<size_t>(3 * columns)] = std::nanf("");
    values[static_cast<size_t>(4 * columns)] = -INFINITY;
    const QuantisedRows got(kernels(), values, 5, columns), wanted(scalar(), values, 5, columns);
    EXPECT_EQ(got.codes, wanted.codes);
    EXPECT_EQ(got.sums, wanted.sums);
    expect_same_bits(got.scales, wanted.scales, std::to_string(columns) + " columns");
  }
}

TEST_P(KernelTables, elementwise_functions_have_the_bits_of_scalar) {
  RandomValues random(26);
  for (const int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 100, 1000}) {
    const std::string what = std::to_string(n) + " elements";
    const auto size = static_cast<size_t>(n);
    const std::vector<float> x = random.gaussians(n, 3.0f), weight = random.gaussians(n);
    const std::vector<float> bias = random.gaussians(n);
    std::vector<float> got(size), wanted(size);

    kernels().rms_norm(x.data(), weight.data(), n, 1e-5f, got.data());
    scalar().rms_norm(x.data(), weight.data(), n, 1e-5f, wanted.data());
    expect_same_bits(got, wanted, "rms_norm " + what);

    kernels().layer_norm(x.data(), weight.data(), bias.data(), n, 1e-5f, got.data());
    scalar().layer_norm(x.data(), weight.data(), bias.data(), n, 1e-5f, wanted.data());
    expect_same_bits(got, wanted, "layer_norm " + what);

    got = wanted = bias;
    kernels().add_scaled(got.data(), x.data(), 0.37f, n);
    scalar().add_scaled(wanted.data(), x.data(), 0.37f, n);
    expect_same_bits(got, wanted, "add_scaled " + what);

    got = wanted = random.gaussians(2 * n);
    kernels().rotate(got.data(), x.data(), weight.data(), n);
    scalar().rotate(wanted.data(), x.data(), weight.data(), n);
    expect_same_bits(got, wanted, "rotate " + what);

    std::vector<uint16_t> halves(size), halves_wanted(size);
    kernels().to_f16(x.data(), n, halves.data());
    scalar().to_f16(x.data(), n, halves_wanted.data());
    EXPECT_EQ(halves, halves_wanted);

    std::vector<float> wide = random.gaussians(n, 60.0f);
    wide[0] = -INFINITY;
    wide[size - 1] = 88.72283f;
    got.resize(size);
    wanted.resize(size);
    kernels().sigmoid(wide.data(), n, got.data());
    scalar().sigmoid(wide.data(), n, wanted.data());
    expect_same_bits(got, wanted, "sigmoid " + what);

    got = wanted = wide;
    const float sum = kernels().exp_and_sum(got.data(), n, 1.5f);
    const float sum_wanted = scalar().exp_and_sum(wanted.data(), n, 1.5f);
    expect_same_bits(got, wanted, "exp " + what);
    expect_same_bits({sum}, {sum_wanted}, "exp sum " + what);
  }
}

TEST_P(KernelTables, passes_over_logits_have_the_bits_of_scalar) {
  RandomValues random(33);
  for (const int64_t n : {1, 15, 16, 17, 100, 1023, 1024, 1025, 3000}) {
    const auto size = static_cast<size_t>(n);
    std::vector<float> x = random.gaussians(n, 4.0f);
    for (float& value : x) value = std::round(value * 4.0f) / 4.0f;  // ties
    EXPECT_EQ(kernels().find_largest(x.data(), n),
              std::max_element(x.begin(), x.end()) - x.begin());
    std::vector<float> got(size), wanted(size), sums(3), sums_wanted(3);
    kernels().weigh(x.data(), n, 5.0f, 1.7f, got.data(), sums.data());
    scalar().weigh(x.data(), n, 5.0f, 1.7f, wanted.data(), sums_wanted.data());
    expect_same_bits(got, wanted, "weights");
    expect_same_bits(sums, sums_wanted, "sums of weights");
    std::vector<int32_t> places(size, -1), places_wanted(size, -1);
    EXPECT_EQ(kernels().find_at_least(x.data(), n, 1.25f, places.data()),
              scalar().find_at_least(x.data(), n, 1.25f, places_wanted.data()));
    EXPECT_EQ(places, places_wanted);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> spoilt = x;
      spoilt[size * 2 / 3] = bad;
      EXPECT_EQ(kernels().find_largest(spoilt.data(), n), -1);
    }
  }
}

TEST_P(KernelTables, f16_conversions_have_the_bits_of_scalar) {
  std::vector<uint16_t> halves(65536), back(65536), back_wanted(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> got(65536), wanted(65536);
  kernels().from_f16(halves.data(), 65536, got.data());
  scalar().from_f16(halves.data(), 65536, wanted.data());
  expect_same_bits(got, wanted, "from_f16");

  RandomValues random(27);
  for (float& value : got) {
    const uint32_t bits = random.bits();
    memcpy(&value, &bits, 4);
  }
  kernels().to_f16(got.data(), 65536, back.data());
  scalar().to_f16(got.data(), 65536, back_wanted.data());
  EXPECT_EQ(back, back_wanted);
}

TEST_P(KernelTables, embedding_rows_have_the_bits_of_scalar) {
  RandomValues random(28);
  for (const BlockFormat format :
       {BlockFormat::f32, BlockFormat::f16, BlockFormat::bf16, BlockFormat::q8}) {
    for (const int64_t columns : {1, 8, 31, 32, 33, 100}) {
      const std::vector<float> values = random.gaussians(columns);
      std::vector<uint8_t> row(static_cast<size_t>(embedding_row_bytes(format, columns)));
      encode_embedding(format, values.data(), 1, columns, row.data());
      std::vector<float> got(values.size()), wanted(values.size());
      kernels().embedding_row[index_of(format)](row.data(), columns, got.data());
      scalar().embedding_row[index_of(format)](row.data(), columns, wanted.data());
      expect_same_bits(got, wanted, format_name(format));
    }
  }
}

struct Latent {
  int64_t latent, rope;
};

TEST_P(KernelTables, attention_has_the_bits_of_scalar) {
  RandomValues random(29);
  for (const auto [latent, rope] :
       {Latent{1, 1}, {16, 16}, {24, 8}, {40, 10}, {67, 3}, {512, 64}}) {
    const int64_t width = latent + rope;
    for (const CacheRow& row :
         {CacheRow{width, true}, CacheRow{width, false}, CacheRow{width, false, latent}}) {
      const Cache cache(random, 1400, row);
      for (const int64_t heads : {1, 3, 4, 9, 16, 23, 64}) {
        const std::vector<float> queries = random.gaussians(heads * width);
        for (const int64_t key_count : {0, 1, 2, 63, 64, 65, 131, 256, 257, 600}) {
          if (latent == 512 && (key_count > 65 || heads > 9) && heads != 23) continue;
          std::vector<int32_t> positions;
          for (int64_t k = 0; k < key_count; ++k)
            positions.push_back(static_cast<int32_t>(k * 2 + k % 2));
          for (const int32_t* list : {static_cast<const int32_t*>(positions.data()),
                                      static_cast<const int32_t*>(nullptr)}) {
            const AttentionInput input = {queries.data(), heads, latent,    rope,
                                          cache.view(),   list,  key_count, 0.11f};
            const std::vector<float> wanted = attend(scalar(), input);
            const std::string what =
                std::to_string(heads) + " heads, " + std::to_string(key_count) + " keys";
            expect_same_bits(attend(kernels(), input), wanted, what);
            expect_same_bits(attend_in_parts(kernels(), input), wanted, what + " in parts");
          }
        }
      }
    }
  }
}

TEST_P(KernelTables, attention_keeps_what_is_not_finite) {
  RandomValues random(31);
  const int64_t heads = 17, latent = 20, rope = 4, width = latent + rope;
  Cache cache(random, 300, {width, true});
  const auto set = [&](int64_t token, int64_t i, float value) {
    auto* block = reinterpret_cast<float*>(cache.storage[static_cast<size_t>(token / 64)].data());
    block[token % 64 * width + i] = value;
  };
  set(70, 3, INFINITY);
  set(290, 22, -INFINITY);
  std::vector<float> queries = random.gaussians(heads * width);
  queries[5] = NAN;
  const AttentionInput input = {queries.data(), heads,   latent, rope,
                                cache.view(),   nullptr, 300,    0.2f};
  const std::vector<float> got = attend(kernels(), input), wanted = attend(scalar(), input);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(got[i]), std::isnan(wanted[i])) << i;
    if (!std::isnan(wanted[i])) {
      EXPECT_EQ(got[i], wanted[i]) << i;
    }
  }
}

TEST_P(KernelTables, index_scores_have_the_bits_of_scalar) {
  RandomValues random(30);
  for (const bool is_f32 : {true, false}) {
    for (const int64_t width : {1, 16, 24, 50, 128}) {
      const Cache cache(random, 200, {width, is_f32});
      for (const int64_t heads : {1, 3, 4, 16, 21, 32, 33}) {
        const std::vector<float> queries = random.gaussians(heads * width),
                                 weights = random.gaussians(heads);
        AlignedBytes scratch(index_scratch_floats(heads, width) * 4);
        auto* floats = reinterpret_cast<float*>(scratch.data());
        std::vector<float> got(200, -1.0f), wanted = got;
        kernels().index_scores(queries.data(), weights.data(), heads, cache.view(), 0.2f, floats,
                               got.data(), 3, 197);
        scalar().index_scores(queries.data(), weights.data(), heads, cache.view(), 0.2f, floats,
                              wanted.data(), 3, 197);
        expect_same_bits(got, wanted, "index_scores");
      }
    }
  }
}

std::vector<int32_t> select_top(const KernelTable& kernels, const std::vector<float>& scores,
                                int64_t wanted) {
  const auto count = static_cast<int64_t>(scores.size());
  std::vector<int32_t> scratch(static_cast<size_t>(top_scratch_ints(count)), -1);
  std::vector<int32_t> positions(static_cast<size_t>(wanted), -1);
  kernels.select_top(scores.data(), count, wanted, scratch.data(), positions.data());
  return positions;
}

// By sorting.
std::vector<int32_t> top_by_sorting(const std::vector<float>& scores, int64_t wanted) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int32_t place) {
    const float score = scores[static_cast<size_t>(place)];
    return std::isnan(score) ? -INFINITY : score;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
  order.resize(static_cast<size_t>(wanted));
  std::sort(order.begin(), order.end());
  return order;
}

TEST_P(KernelTables, the_top_of_scores_is_that_of_sorting_ties_to_the_lower_place) {
  RandomValues random(32);
  for (const int64_t count : {1, 2, 15, 16, 17, 100, 2049, 5000}) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> scores = random.gaussians(count);
      for (float& score : scores) {
        const uint32_t draw = random.bits() % 16;
        if (kind == 1) score = std::round(score * 2.0f) / 2.0f;  // many ties, both zeros
        if (kind == 2) score = std::ldexp(score, static_cast<int>(random.bits() % 200) - 100);
        if (kind == 3 && draw == 0) score = NAN;
        if (kind == 3 && draw == 1) score = -INFINITY;
        if (kind == 3 && draw == 2) score = INFINITY;
        if (kind == 3 && draw == 3) score = -NAN;
        if (kind == 3 && draw > 8) score = random.bits() % 2 == 0 ? 0.0f : -0.0f;
      }
      for (const int64_t wanted : {int64_t{1}, (count + 1) / 2, count - 1, count}) {
        if (wanted < 1) continue;
        EXPECT_EQ(select_top(kernels(), scores, wanted), top_by_sorting(scores, wanted))
            << wanted << " of " << count << ", kind " << kind;
      }
    }
  }
}

TEST_P(KernelTables, among_top_scores_zeros_of_both_signs_are_equal_and_nan_is_last) {
  EXPECT_EQ(select_top(kernels(), {0.0f, 2.0f, -0.0f, -1.0f, 0.0f, 3.0f}, 4),
            (std::vector<int32_t>{0, 1, 2, 5}));
  EXPECT_EQ(select_top(kernels(), {-0.0f, 0.0f}, 1), std::vector<int32_t>{0});
  EXPECT_EQ(select_top(kernels(), {NAN, -5.0f, NAN, -7.0f}, 2), (std::vector<int32_t>{1, 3}));
}

// Rows as checkpoints have them and as they should not: sizes from nothing to the largest that is
// converted, mostly zeros, few distinct values (so that errors tie), one value that dwarfs the
// rest.
std::vector<float> row_to_encode(RandomValues& random, int kind, int64_t columns) {
  std::vector<float> values = random.gaussians(columns);
  for (float& value : values) {
    const uint32_t bits = random.bits();
    if (kind == 1) value *= 2e6f;
    if (kind == 2) value *= 1e-30f;
    if (kind == 3) value = 1e-40f * static_cast<float>(bits % 100);
    if (kind == 4) value = std::ldexp(value, static_cast<int>(bits % 60) - 30);
    if (kind == 5) value = bits % 4 == 0 ? value : 0.0f;
    if (kind == 6) value = static_cast<float>(bits % 7) - 3.0f;
    if (kind == 7) value = static_cast<float>(bits % 255) - 127.0f;
    if (kind == 8) value = bits % 2 == 0 ? 0.5f : -0.5f;
    if (kind == 9) value = 0.0f;
  }
  if (kind == 10) values[0] = 8e6f;
  return values;
}
constexpr int row_kinds = 11;

TEST_P(KernelTables, encoded_rows_are_those_of_scalar) {
  RandomValues random(61);
  for (int round = 0; round < 60; ++round) {
    for (int kind = 0; kind < row_kinds; ++kind) {
      const int64_t columns = 1 + random.bits() % 200;
      const std::vector<float> values = row_to_encode(random, kind, columns);
      const float largest = scalar().largest_magnitude(values.data(), columns);
      ASSERT_EQ(kernels().largest_magnitude(values.data(), columns), largest);
      // As the row's own amax asks for, and as that of a row with a larger one. Tiny rows have
      // none.
      const float row_scale =
          largest < 1e-30f ? 0.0f : largest * (1.0f + static_cast<float>(round % 3)) / 8000.0f;
      for (const BlockFormat format : {BlockFormat::q8, BlockFormat::nl5, BlockFormat::nl4}) {
        const auto groups = static_cast<size_t>(padded_columns(columns) / group_columns);
        std::vector<uint16_t> got_scales(groups, 7), wanted_scales(groups, 8);
        std::vector<uint8_t> got(groups * group_columns, 7), wanted(groups * group_columns, 8);
        kernels().encode_row[index_of(format)](values.data(), columns, row_scale, got_scales.data(),
                                               got.data());
        scalar().encode_row[index_of(format)](values.data(), columns, row_scale,
                                              wanted_scales.data(), wanted.data());
        ASSERT_EQ(got_scales, wanted_scales) << format_name(format) << " kind " << kind;
        ASSERT_EQ(got, wanted) << format_name(format) << " kind " << kind;
      }
    }
  }
}

TEST_P(KernelTables, the_largest_magnitude_is_not_finite_where_a_value_is_not) {
  for (const int64_t n : {1, 8, 31, 100}) {
    for (int64_t place = 0; place < n; ++place) {
      std::vector<float> values(static_cast<size_t>(n), -3.0f);
      EXPECT_EQ(kernels().largest_magnitude(values.data(), n), 3.0f);
      values[static_cast<size_t>(place)] = -std::numeric_limits<float>::infinity();
      EXPECT_TRUE(std::isinf(kernels().largest_magnitude(values.data(), n)));
      values[static_cast<size_t>(place)] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(kernels().largest_magnitude(values.data(), n)));
    }
  }
  EXPECT_EQ(kernels().largest_magnitude(nullptr, 0), 0.0f);
}

}  // namespace
}  // namespace glmd
