#include "bench_kernels.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/block_encoder.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "peak_loops.h"
#include "platform/aligned_memory.h"
#include "platform/check.h"

namespace glmd {
namespace {

struct Options {
  std::string kernels = "auto";
  std::vector<std::string> formats = {"nl4", "nl5", "q8"};
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 64};
  std::vector<int> threads = {1, 2};
  int repetitions = 9;
  bool as_json = false;
};

constexpr int64_t columns = 6144;
constexpr int64_t matrix_target_bytes = int64_t{256} << 20;
constexpr int64_t slice_count =
    4;  // measured one after the other: each is far larger than the caches
constexpr int64_t pattern_rows = 64;  // encoded once and repeated
constexpr int64_t peak_rounds = 2000000;

BlockFormat format_of(const std::string& name) {
  return name == "q8" ? BlockFormat::q8 : name == "nl5" ? BlockFormat::nl5 : BlockFormat::nl4;
}

// Cheap bell-shaped values.
std::vector<float> bell_values(int64_t n, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(n));
  uint64_t state = seed;
  for (float& value : values) {
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
    }
    value = sum;
  }
  return values;
}

struct BenchMatrix {
  explicit BenchMatrix(BlockFormat format) {
    const int64_t row_bytes = block_bytes(format) * columns / group_columns / tile_rows;
    const int64_t rows =
        matrix_target_bytes / row_bytes / (pattern_rows * slice_count) * pattern_rows * slice_count;
    memory = AlignedMemory::allocate(matrix_bytes(format, rows, columns)).value();
    std::vector<uint8_t> pattern(static_cast<size_t>(matrix_bytes(format, pattern_rows, columns)));
    const std::vector<float> values = bell_values(pattern_rows * columns, 1);
    encode_matrix(format, values.data(), pattern_rows, columns, pattern.data());
    const int64_t scale_bytes = format == BlockFormat::q8 ? 0 : 4;
    const int64_t tile_bytes = row_bytes * pattern_rows;
    for (int64_t r = 0; r < rows; r += pattern_rows) {
      memcpy(memory.data() + r * scale_bytes, pattern.data(),
             static_cast<size_t>(pattern_rows * scale_bytes));
      memcpy(memory.data() + rows * scale_bytes + r * row_bytes,
             pattern.data() + pattern_rows * scale_bytes, static_cast<size_t>(tile_bytes));
    }
    matrix = {memory.data(), rows, columns, format};
    bytes_per_row = row_bytes;
    first_byte = rows * scale_bytes;
  }
  AlignedMemory memory;
  Matrix matrix;
  int64_t bytes_per_row, first_byte;
};

struct Rates {
  std::vector<double> kernel_bytes, kernel_products, read_bytes, peak_products;  // per second, 1e9
};

void bench_one(const KernelTable& kernels, const PeakLoops& peak, const BenchMatrix& w,
               const std::string& format, int64_t rows, int thread_count, const Options& options) {
  Team team(thread_count);
  const std::vector<float> values = bell_values(rows * columns, 2);
  const int64_t groups = columns / group_columns;
  std::vector<int8_t> codes(static_cast<size_t>(rows * columns));
  std::vector<float> scales(static_cast<size_t>(rows * groups));
  std::vector<int32_t> sums(scales.size());
  kernels.quantise(values.data(), columns, rows, columns, codes.data(), scales.data(), sums.data());
  const Activations x = {values.data(), columns, codes.data(), scales.data(),
                         sums.data(),   rows,    columns};
  std::vector<float> y(static_cast<size_t>(rows * w.matrix.rows));
  const auto matmul = kernels.matmul[static_cast<size_t>(w.matrix.format)];

  Rates rates;
  const int64_t slice_rows = w.matrix.rows / slice_count;
  const double slice_bytes = static_cast<double>(slice_rows * w.bytes_per_row);
  std::vector<uint64_t> sink(static_cast<size_t>(thread_count));
  for (int i = 0; i < options.repetitions + 1; ++i) {
    const int64_t read_slice = 2 * i % slice_count, slice = (2 * i + 1) % slice_count;
    const double read_seconds =
        measure_seconds(team, slice_rows, tile_rows, [&](int64_t begin, int64_t end, int thread) {
          const uint8_t* from =
              w.matrix.data + w.first_byte + (read_slice * slice_rows + begin) * w.bytes_per_row;
          sink[static_cast<size_t>(thread)] ^= peak.read(from, (end - begin) * w.bytes_per_row);
        });
    const double kernel_seconds =
        measure_seconds(team, slice_rows, tile_rows, [&](int64_t begin, int64_t end, int) {
          matmul(w.matrix, x, y.data(), w.matrix.rows, slice * slice_rows + begin,
                 slice * slice_rows + end);
        });
    const double peak_seconds =
        measure_seconds(team, thread_count, 1, [&](int64_t begin, int64_t end, int) {
          if (begin < end) peak.multiply_int8(peak_rounds);
        });
    if (i == 0) continue;  // warms up
    rates.read_bytes.push_back(slice_bytes / read_seconds * 1e-9);
    rates.kernel_bytes.push_back(slice_bytes / kernel_seconds * 1e-9);
    rates.kernel_products.push_back(static_cast<double>(slice_rows * columns * rows) /
                                    kernel_seconds * 1e-9);
    rates.peak_products.push_back(
        static_cast<double>(peak_rounds * peak.int8_products * thread_count) / peak_seconds * 1e-9);
  }
  Measurement m = {.bench = "kernels",
                   .varied = {{"kernels", kernels.name},
                              {"format", format},
                              {"rows", rows},
                              {"threads", thread_count}},
                   .part = "memory",
                   .value = median(rates.kernel_bytes),
                   .unit = "GB/s",
                   .bound = median(rates.read_bytes)};
  report(m, options.as_json);
  m.part = "int8";
  m.value = median(rates.kernel_products);
  m.unit = "GMAC/s";
  m.bound = median(rates.peak_products);
  report(m, options.as_json);
}

Result<void> run(const Options& options) {
  const KernelTable* kernels = find_kernels(options.kernels.c_str());
  if (kernels == nullptr) {
    return error(ErrorKind::usage, "--kernels: this CPU has no table \"{}\"", options.kernels);
  }
  const PeakLoops& peak = find_peak_loops(kernels->name);
  for (const std::string& format : options.formats) {
    const BenchMatrix matrix(format_of(format));
    for (const int threads : options.threads) {
      for (const int64_t rows : options.rows)
        bench_one(*kernels, peak, matrix, format, rows, threads, options);
    }
  }
  return {};
}

}  // namespace

BenchCommand add_kernels_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "kernels", "matrix kernels: GB/s, GMAC/s, ratios to read and int8 loops");
  app->add_option("--kernels", options->kernels, "table: auto, scalar, avx2, avx512");
  app->add_option("--formats", options->formats, "nl4, nl5, q8")
      ->check(CLI::IsMember({"nl4", "nl5", "q8"}))
      ->delimiter(',');
  app->add_option("--rows", options->rows, "rows of activations")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',');
  app->add_option("--threads", options->threads, "numbers of threads")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',');
  app->add_option("--repetitions", options->repetitions, "medians are of so many")
      ->check(CLI::Range(1, 1000));
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
