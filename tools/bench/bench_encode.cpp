#include "bench_encode.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "encode_slice.h"
#include "kernels/block_encoder.h"
#include "measurement.h"
#include "peak_loops.h"
#include "platform/clock.h"
#include "platform/file.h"
#include "storage/manifest.h"
#include "tools/command_line.h"
#include "tools/convert/converter.h"
#include "tools/convert/row_reader.h"

namespace glmd {
namespace {

struct Options {
  std::string kernels = "auto";
  std::string folder;
  std::vector<std::string> formats = {"nl4", "nl5", "q8"};
  std::vector<int> threads = {1, 2};
  int64_t experts = 16;
  int repetitions = 5;
  bool as_json = false;
};

// Removed with all that is in it.
class ScratchFolder {
 public:
  static Result<ScratchFolder> create(const std::string& parent) {
    std::string path = parent + "/glmd-bench-encode.XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return output_error(parent, "make a folder");
    return ScratchFolder(std::move(path));
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// ---- The steps, one after the other on one thread

constexpr int64_t step_rows = 16;  // as many as a thread of the converter has in hand

struct Step {
  const char* name;
  double seconds = 0;
};

// All steps of one matrix, its rows in the order and the amounts of the converter.
class Steps {
 public:
  Steps(const Checkpoint& checkpoint, const RowReader& reader, const KernelTable& kernels,
        BlockFormat format, File& target)
      : checkpoint_(checkpoint),
        reader_(reader),
        kernels_(kernels),
        format_(format),
        target_(target),
        columns_(reader.source().columns),
        raw_(static_cast<size_t>(step_rows * columns_)),
        values_(raw_.size()),
        encoded_(static_cast<size_t>(matrix_bytes(format, step_rows, columns_))) {}

  Result<std::vector<Step>> measure() {
    std::vector<Step> steps = {{"read"},   {"decode FP8"}, {"check"},
                               {"encode"}, {"hash"},       {"write"}};
    for (int64_t row = 0; row + step_rows <= reader_.source().rows; row += step_rows) {
      TRY(time(steps[0], [&] { return read(row); }));
      TRY(time(steps[1],
               [&] { return reader_.read(row, row + step_rows, again_, values_.data()); }));
      TRY(time(steps[2], [&] { return check(); }));
      TRY(time(steps[3], [&] { return encode(); }));
      TRY(time(steps[4], [&] { return hash(); }));
      TRY(time(steps[5], [&] { return target_.write_at(row * columns_, encoded_); }));
    }
    steps[1].seconds -= steps[0].seconds;  // it reads, too
    return steps;
  }

 private:
  template <class Work>
  static Result<void> time(Step& step, Work work) {
    const double begin = thread_seconds();
    TRY(work());
    step.seconds += thread_seconds() - begin;
    return {};
  }
  static double thread_seconds() {
    timespec now;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  Result<void> read(int64_t row) {
    return checkpoint_.read(*reader_.source().tensor, row * columns_, raw_);
  }
  Result<void> check() {
    for (int64_t row = 0; row < step_rows; ++row)
      largest_ = kernels_.largest_magnitude(values_.data() + row * columns_, columns_);
    return {};
  }
  Result<void> encode() {
    encode_matrix(format_, values_.data(), step_rows, columns_, encoded_.data(), kernels_);
    return {};
  }
  Result<void> hash() {
    hash_ = hash_bytes(encoded_);
    return {};
  }

  const Checkpoint& checkpoint_;
  const RowReader& reader_;
  const KernelTable& kernels_;
  const BlockFormat format_;
  File& target_;
  const int64_t columns_;
  std::vector<uint8_t> raw_, again_;
  std::vector<float> values_;
  std::vector<uint8_t> encoded_;
  volatile float largest_ = 0;
  volatile uint64_t hash_ = 0;
};

double read_gigabytes(const PeakLoops& peak, const std::vector<uint8_t>& memory) {
  Team team(1);
  volatile uint64_t sink = 0;
  const double seconds = measure_seconds(team, 1, 1, [&](int64_t begin, int64_t end, int) {
    if (begin < end) sink = sink ^ peak.read(memory.data(), std::ssize(memory));
  });
  return static_cast<double>(memory.size()) * 1e-9 / seconds;
}

// Of the first expert's gate: each step's rate beside that of reading the same bytes from memory,
// and its share of the whole.
Result<void> bench_steps(const std::string& source, const std::string& target,
                         const std::string& format, const KernelTable& kernels,
                         const Options& options) {
  const Checkpoint checkpoint = TRY(Checkpoint::open(source, {}));
  const ConversionPlan plan = TRY(plan_conversion(checkpoint, Policies()));
  const auto is_expert = [](const PlannedTensor& tensor) {
    return tensor.entry.kind == TensorKind::routed_expert;
  };
  const MatrixSource* gate = nullptr;
  for (const PlannedFile& file : plan.files) {
    const auto found = std::find_if(file.tensors.begin(), file.tensors.end(), is_expert);
    if (found != file.tensors.end()) gate = &found->sources[0];
  }
  CHECK(gate != nullptr);
  const RowReader reader = TRY(RowReader::open(checkpoint, *gate));
  File file = TRY(File::create(target));
  Steps steps(checkpoint, reader, kernels, format_of(format), file);
  const std::vector<uint8_t> memory(size_t{1} << 28, 1);
  const PeakLoops& peak = find_peak_loops(kernels.name);
  const auto weights = static_cast<double>(gate->rows * gate->columns) * 1e-6;
  std::vector<std::vector<double>> seconds(6);
  std::vector<double> all, reads;
  std::vector<Step> measured;
  for (int i = 0; i <= options.repetitions; ++i) {
    measured = TRY(steps.measure());
    if (i == 0) continue;  // warms up
    double sum = 0;
    for (size_t step = 0; step < measured.size(); ++step) {
      seconds[step].push_back(measured[step].seconds);
      sum += measured[step].seconds;
    }
    all.push_back(sum);
    reads.push_back(read_gigabytes(peak, memory) * 1e3);  // a byte is a weight
  }
  const Varied varied = {{"kernels", kernels.name}, {"format", format}, {"threads", int64_t{1}}};
  const char* unit = "M weights/s";
  for (size_t step = 0; step < measured.size(); ++step) {
    const std::string name = measured[step].name;
    report({"encode", varied, name, weights / median(seconds[step]), unit, median(reads)},
           options.as_json);
    report({"encode", varied, "share of " + name, median(seconds[step]) / median(all), "of 1", {}},
           options.as_json);
  }
  report({"encode", varied, "all steps", weights / median(all), unit, median(reads)},
         options.as_json);
  return {};
}

// ---- The whole

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// cp, and its bytes on disk.
Result<double> copy_seconds(const std::string& source, const std::string& target) {
  const auto begin = std::chrono::steady_clock::now();
  std::string words[] = {"cp", "-r", "--", source, target};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(),
                       words[3].data(), words[4].data(), nullptr};
  pid_t child = 0;
  if (::posix_spawnp(&child, "cp", nullptr, nullptr, arguments, environ) != 0)
    return error(ErrorKind::io, "cp: cannot be started");
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0)
    return error(ErrorKind::io, "cp {} {}: failed", source, target);
  for (const std::string& name : TRY(list_directory(target))) {
    File file = TRY(File::open_read_only(target + "/" + name));
    TRY(file.sync());
  }
  return seconds_since(begin);
}

struct Whole {
  double seconds = 0;
  int64_t weights = 0;
};

Result<Whole> convert_whole(const std::string& source, const std::string& target,
                            const KernelTable& kernels, int threads) {
  Whole whole;
  ConvertOptions options;
  options.source = source;
  options.target = target;
  options.threads = threads;
  options.kernels = &kernels;
  const auto begin = std::chrono::steady_clock::now();
  TRY(convert(options, [&](const ConvertProgress& progress) {
    whole.weights = progress.weights_done;
    return true;
  }));
  whole.seconds = seconds_since(begin);
  return whole;
}

// Conversion and copy in turns, both with the source in memory and all bytes on disk in the end.
Result<void> bench_whole(const ScratchFolder& scratch, const std::string& source,
                         const KernelTable& kernels, const Options& options) {
  for (const int threads : options.threads) {
    std::vector<double> converted, copied;
    for (int i = 0; i < options.repetitions; ++i) {
      const std::string target = scratch / "target", copy = scratch / "copy";
      const Whole whole = TRY(convert_whole(source, target, kernels, threads));
      const auto weights = static_cast<double>(whole.weights) * 1e-6;
      converted.push_back(weights / whole.seconds);
      copied.push_back(weights / TRY(copy_seconds(source, copy)));
      std::filesystem::remove_all(target);
      std::filesystem::remove_all(copy);
    }
    report({"encode",
            {{"kernels", kernels.name}, {"format", "default"}, {"threads", int64_t{threads}}},
            "conversion, beside cp",
            median(converted),
            "M weights/s",
            median(copied)},
           options.as_json);
  }
  return {};
}

Result<void> run(const Options& options) {
  const KernelTable* kernels = TRY(kernels_named(options.kernels));
  constexpr int64_t expert_weights = 3 * 2048 * 6144, other_weights = 300 << 20;
  TRY(check_free_space(options.folder, 3 * (options.experts * expert_weights + other_weights)));
  const ScratchFolder scratch = TRY(ScratchFolder::create(options.folder));
  const std::string source = scratch / "checkpoint";
  std::filesystem::create_directory(source);
  TRY(write_encode_slice(source, options.experts));
  for (const std::string& format : options.formats)
    TRY(bench_steps(source, scratch / "encoded", format, *kernels, options));
  return bench_whole(scratch, source, *kernels, options);
}

}  // namespace

BenchCommand add_encode_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "encode", "the converter: each step and the whole, beside the read loop and cp");
  app->add_option("--folder", options->folder, "a checkpoint is made here, converted, removed")
      ->required();
  app->add_option("--kernels", options->kernels, "table: auto, scalar, avx2, avx512");
  app->add_option("--formats", options->formats, "nl4, nl5, q8: of the steps")
      ->check(CLI::IsMember({"nl4", "nl5", "q8"}))
      ->delimiter(',');
  app->add_option("--experts", options->experts, "of the one layer that is converted")
      ->transform(within(8, 256));
  app->add_option("--threads", options->threads, "numbers of threads of the whole")
      ->transform(within(1, 1024))
      ->delimiter(',');
  app->add_option("--repetitions", options->repetitions, "medians are of so many")
      ->transform(within(1, 1000));
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
