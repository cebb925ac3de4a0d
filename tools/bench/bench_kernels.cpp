#include "bench_kernels.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "bench_memory.h"
#include "kernels/block_encoder.h"
#include "kernels/kernel_table.h"
#include "measurement.h"
#include "peak_loops.h"
#include "platform/aligned_memory.h"
#include "platform/check.h"
#include "tools/command_line.h"

namespace glmd {
namespace {

struct Options {
  std::string kernels = "auto";
  std::vector<std::string> operations = {"matmul", "gate-up"};
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
  // `x_rows`: of activations, at most.
  static Result<BenchMatrix> create(BlockFormat format, int64_t x_rows) {
    const int64_t row_bytes = block_bytes(format) * columns / group_columns / tile_rows;
    const int64_t rows =
        matrix_target_bytes / row_bytes / (pattern_rows * slice_count) * pattern_rows * slice_count;
    const int64_t bytes = matrix_bytes(format, rows, columns);
    TRY(check_memory(std::vector<MemoryTerm>{
        {"matrix", bytes}, {"activations", x_rows * columns * 6}, {"results", x_rows * rows * 4}}));
    return BenchMatrix(format, rows, row_bytes, TRY(AlignedMemory::allocate(bytes)));
  }
  BenchMatrix(BlockFormat format, int64_t rows, int64_t row_bytes, AlignedMemory of_rows)
      : memory(std::move(of_rows)) {
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

// Activations as kernels want them, of random values.
struct BenchActivations {
  BenchActivations(const KernelTable& kernels, int64_t rows)
      : values(bell_values(rows * columns, 2)),
        codes(static_cast<size_t>(rows * columns)),
        scales(static_cast<size_t>(rows * columns / group_columns)),
        sums(scales.size()) {
    kernels.quantise(values.data(), columns, rows, columns, codes.data(), scales.data(),
                     sums.data());
    view = {values.data(), columns, codes.data(), scales.data(), sums.data(), rows, columns};
  }
  std::vector<float> values;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Activations view;
};

// What one repetition measures, each in seconds for one slice of the matrix.
struct Seconds {
  double read, kernel, kernel_one_row, peak;
};

// The kernel and the loops it is measured against, one after the other on different slices. Gate
// and up take a matrix of the same bytes and half the rows.
class SliceBench {
 public:
  SliceBench(const KernelTable& kernels, const PeakLoops& peak, const BenchMatrix& w,
             const std::string& operation, int thread_count)
      : peak_(peak), w_(w), matrix_(w.matrix), team_(thread_count) {
    const bool is_pair = operation == "gate-up";
    const auto index = static_cast<size_t>(matrix_.format);
    if (is_pair) matrix_.rows /= 2;
    kernel_ = is_pair ? kernels.gate_up[index] : kernels.matmul[index];
    sink_.resize(static_cast<size_t>(thread_count));
  }

  Seconds measure(int repetition, const Activations& x) {
    Activations one_row = x;
    one_row.row_count = 1;
    y_.resize(static_cast<size_t>(x.row_count * matrix_.rows));
    Seconds seconds;
    seconds.read = read_seconds(3 * repetition);
    seconds.kernel = kernel_seconds(3 * repetition + 1, x);
    seconds.kernel_one_row =
        x.row_count == 1 ? seconds.kernel : kernel_seconds(3 * repetition + 2, one_row);
    seconds.peak = peak_seconds() * slice_products() * static_cast<double>(x.row_count);
    return seconds;
  }
  double slice_bytes() const {
    return static_cast<double>(w_.matrix.rows / slice_count * w_.bytes_per_row);
  }
  double slice_products() const {  // of one row of activations
    return static_cast<double>(w_.matrix.rows / slice_count * columns);
  }

 private:
  double read_seconds(int slice) {
    const int64_t rows = w_.matrix.rows / slice_count;
    const uint8_t* from =
        w_.matrix.data + w_.first_byte + slice % slice_count * rows * w_.bytes_per_row;
    return measure_seconds(team_, rows, tile_rows, [&](int64_t begin, int64_t end, int thread) {
      sink_[static_cast<size_t>(thread)] ^=
          peak_.read(from + begin * w_.bytes_per_row, (end - begin) * w_.bytes_per_row);
    });
  }
  double kernel_seconds(int slice, const Activations& x) {
    const int64_t rows = matrix_.rows / slice_count, first = slice % slice_count * rows;
    return measure_seconds(team_, rows, tile_rows, [&](int64_t begin, int64_t end, int) {
      kernel_(matrix_, x, y_.data(), matrix_.rows, first + begin, first + end);
    });
  }
  // A product.
  double peak_seconds() {
    const int threads = team_.thread_count();
    const double seconds = measure_seconds(team_, threads, 1, [&](int64_t begin, int64_t end, int) {
      if (begin < end) peak_.multiply_int8(peak_rounds);
    });
    return seconds / static_cast<double>(peak_rounds * peak_.int8_products * threads);
  }

  const PeakLoops& peak_;
  const BenchMatrix& w_;
  Matrix matrix_;
  std::remove_extent_t<decltype(KernelTable::matmul)> kernel_;
  Team team_;
  std::vector<float> y_;
  std::vector<uint64_t> sink_;
};

// Three bounds: reading the weights, multiplying at the peak, and what a column (one more row of
// activations) adds to the time of one row against the time of its products at the peak.
void bench_one(SliceBench& bench, const BenchActivations& x, const Varied& varied,
               const Options& options) {
  const double bytes = bench.slice_bytes() * 1e-9;
  const auto rows = static_cast<double>(x.view.row_count);
  const double products = bench.slice_products() * rows * 1e-9;
  std::vector<double> reads, kernel_reads, peaks, kernel_products, columns_added, columns_peak;
  for (int i = 0; i < options.repetitions + 1; ++i) {
    const Seconds seconds = bench.measure(i, x.view);
    if (i == 0) continue;  // warms up
    reads.push_back(bytes / seconds.read);
    kernel_reads.push_back(bytes / seconds.kernel);
    peaks.push_back(products / seconds.peak);
    kernel_products.push_back(products / seconds.kernel);
    columns_added.push_back((seconds.kernel - seconds.kernel_one_row) / (rows - 1) * 1e3);
    columns_peak.push_back(seconds.peak / rows * 1e3);
  }
  const auto report_part = [&](const char* part, const char* unit,
                               const std::vector<double>& values,
                               const std::vector<double>& bounds) {
    report({"kernels", varied, part, median(values), unit, median(bounds)}, options.as_json);
  };
  report_part("memory", "GB/s", kernel_reads, reads);
  report_part("int8", "GMAC/s", kernel_products, peaks);
  if (x.view.row_count > 1) report_part("column", "ms", columns_added, columns_peak);
}

Result<void> run(const Options& options) {
  const KernelTable* kernels = TRY(kernels_named(options.kernels));
  const PeakLoops& peak = find_peak_loops(kernels->name);
  const int64_t rows_max = *std::max_element(options.rows.begin(), options.rows.end());
  for (const std::string& format : options.formats) {
    const BenchMatrix matrix = TRY(BenchMatrix::create(format_of(format), rows_max));
    for (const std::string& operation : options.operations) {
      for (const int threads : options.threads) {
        SliceBench bench(*kernels, peak, matrix, operation, threads);
        for (const int64_t rows : options.rows) {
          bench_one(bench, BenchActivations(*kernels, rows),
                    {{"kernels", kernels->name},
                     {"op", operation},
                     {"format", format},
                     {"rows", rows},
                     {"threads", threads}},
                    options);
        }
      }
    }
  }
  return {};
}

}  // namespace

BenchCommand add_kernels_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "kernels", "matrix kernels: GB/s, GMAC/s, ms a column, ratios to read and int8 loops");
  app->add_option("--kernels", options->kernels, "table: auto, scalar, avx2, avx512");
  app->add_option("--op", options->operations, "matmul, gate-up")
      ->check(CLI::IsMember({"matmul", "gate-up"}))
      ->delimiter(',');
  app->add_option("--formats", options->formats, "nl4, nl5, q8")
      ->check(CLI::IsMember({"nl4", "nl5", "q8"}))
      ->delimiter(',');
  app->add_option("--rows", options->rows, "rows of activations")
      ->transform(within(1, 4096))
      ->delimiter(',');
  app->add_option("--threads", options->threads, "numbers of threads")
      ->transform(within(1, 1024))
      ->delimiter(',');
  app->add_option("--repetitions", options->repetitions, "medians are of so many")
      ->transform(within(1, 1000));
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
