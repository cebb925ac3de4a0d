#include "bench_reads.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "bench_memory.h"
#include "fio.h"
#include "measurement.h"
#include "platform/aligned_memory.h"
#include "platform/clock.h"
#include "platform/file.h"
#include "storage/io_uring_reader.h"
#include "storage/reader_choice.h"
#include "storage/thread_reader.h"
#include "tools/command_line.h"

namespace glmd {
namespace {

struct Options {
  std::string file, folder;
  int64_t size_bytes = int64_t{8} << 30;
  int64_t expert_bytes = 20054016;  // of GLM-5.2 in nl4
  std::vector<int64_t> sizes = {1 << 20, 2 << 20};
  std::vector<int> depths = {4, 8, 16};
  double seconds = 1;
  int rounds = 5;
  bool as_json = false;
};

struct Setting {
  int64_t size = 0;  // of a segment, or of fio's block
  int depth = 0;
};

struct Rate {
  double gigabytes = 0;    // a second
  double cpu_seconds = 0;  // a second: of this process, so of readers and of who waits for them
};

// One way to read, and the best it has shown.
struct Contender {
  std::string name;
  bool is_ours = true;  // else fio, which the others are held against
  std::function<Result<Rate>(const Setting&)> run;
  Setting best_setting = {};
  double best = 0;
};

double process_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Stopwatch {
 public:
  double seconds() const { return static_cast<double>(clock_.now_ns() - start_ns_) * 1e-9; }
  Rate rate(int64_t bytes) const {
    return {.gigabytes = static_cast<double>(bytes) / seconds() * 1e-9,
            .cpu_seconds = (process_seconds() - start_cpu_seconds_) / seconds()};
  }

 private:
  SteadyClock clock_;
  int64_t start_ns_ = clock_.now_ns();
  double start_cpu_seconds_ = process_seconds();
};

// Experts at random places of the file.
class RandomExperts {
 public:
  RandomExperts(const Options& options, int64_t file_bytes)
      : options_(options),
        place_count_((file_bytes - options.expert_bytes) / ReadQueue::alignment + 1) {}

  int64_t offset() {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(place_count_)) *
           ReadQueue::alignment;
  }

  uint8_t* memory() { return memory_.data(); }

  Result<void> take_memory(int64_t bytes) {
    if (memory_.size_bytes() >= bytes) return {};
    memory_ = {};
    TRY(check_memory(std::vector<MemoryTerm>{{"experts read", bytes}}));
    memory_ = TRY(AlignedMemory::allocate(bytes));
    std::memset(memory_.data(), 1, static_cast<size_t>(bytes));  // no page faults while measuring
    return {};
  }

  // As fio reads: a segment a request, into as many places as there are segments under way. A
  // disk whose data passes a cache of the processor gives more, the fewer these are.
  Result<Rate> run_segments(BlockReader& reader, const Setting& setting) {
    int64_t at = 0, end = 0;
    return run(reader, setting.depth, setting.size, [&] {
      if (at + setting.size > end) {
        at = offset();
        end = at + options_.expert_bytes;
      }
      return std::exchange(at, at + setting.size);
    });
  }

  // Whole experts into slots as the cache has them, enough for `depth` segments to be under way at
  // any time.
  Result<Rate> run_experts(BlockReader& reader, const Setting& setting) {
    const int64_t slots =
        2 + (setting.depth * setting.size + options_.expert_bytes - 1) / options_.expert_bytes;
    return run(reader, slots, options_.expert_bytes, [this] { return offset(); });
  }

 private:
  template <typename NextOffset>
  Result<Rate> run(BlockReader& reader, int64_t slots, int64_t bytes, NextOffset next_offset) {
    TRY(take_memory(slots * bytes));
    const auto submit = [&](uint64_t slot) {
      reader.submit({.offset = next_offset(),
                     .bytes = bytes,
                     .target = memory_.data() + static_cast<int64_t>(slot) * bytes,
                     .tag = slot});
    };
    const Stopwatch stopwatch;
    for (int64_t slot = 0; slot < slots; ++slot) submit(static_cast<uint64_t>(slot));
    while (stopwatch.seconds() < options_.seconds) {
      const ReadCompletion completion = reader.wait();
      TRY(completion.result);
      submit(completion.tag);
    }
    return stopwatch.rate(reader.counters().bytes);
  }

  const Options& options_;
  const int64_t place_count_;
  std::mt19937_64 random_;
  AlignedMemory memory_;
};

void forget_cached_pages(const File& file) {
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

Result<OpenedReader> open_reader(const std::string& path, ReaderKind kind, const Setting& setting) {
  return open_block_reader(
      {path},
      {.kind = kind, .in_flight_max = setting.depth, .queue = {.segment_bytes = setting.size}});
}

Result<Rate> read_buffered(RandomExperts& experts, const std::string& path,
                           const Setting& setting) {
  std::vector<File> files;
  files.push_back(TRY(File::open_read_only(path)));
  forget_cached_pages(files[0]);
  ThreadReader reader(std::move(files), setting.depth, {.segment_bytes = setting.size});
  return experts.run_experts(reader, setting);
}

Result<Rate> read_mapped(RandomExperts& experts, const std::string& path, const Options& options) {
  const File file = TRY(File::open_read_only(path));
  forget_cached_pages(file);
  const auto bytes = static_cast<size_t>(TRY(file.size_bytes()));
  void* mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapping == MAP_FAILED) return file_error(path, fmt::format("map {} bytes", bytes));
  TRY(experts.take_memory(options.expert_bytes));
  const Stopwatch stopwatch;
  int64_t done_bytes = 0;
  for (; stopwatch.seconds() < options.seconds; done_bytes += options.expert_bytes) {
    std::memcpy(experts.memory(), static_cast<const uint8_t*>(mapping) + experts.offset(),
                static_cast<size_t>(options.expert_bytes));
  }
  const Rate rate = stopwatch.rate(done_bytes);
  ::munmap(mapping, bytes);
  return rate;
}

Result<Rate> read_by_fio(const std::string& path, const Setting& setting, const Options& options,
                         bool aligns_buffers) {
  TRY(check_memory(std::vector<MemoryTerm>{{"fio's blocks", setting.depth * setting.size}}));
  const double bytes =
      TRY(run_fio({.path = path,
                   .block_bytes = setting.size,
                   .depth = setting.depth,
                   .run_length = std::max<int64_t>(1, options.expert_bytes / setting.size),
                   .seconds = options.seconds,
                   .aligns_buffers = aligns_buffers}));
  return Rate{.gigabytes = bytes * 1e-9};
}

void report_rate(const std::string& reader, const Setting& setting, const char* part, double value,
                 const char* unit, std::optional<double> bound, bool as_json) {
  report({.bench = "reads",
          .varied = {{"reader", reader}, {"size", setting.size}, {"depth", setting.depth}},
          .part = part,
          .value = value,
          .unit = unit,
          .bound = bound},
         as_json);
}

// Files of these have no device behind them, though some kernels read them directly.
Result<bool> is_in_memory(const File& file) {
  struct statfs status {};
  if (::fstatfs(file.descriptor(), &status) != 0) return file_error(file.path(), "stat");
  return status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

// Every setting once, by all in turn: where each is at its best.
Result<void> sweep(std::vector<Contender>& contenders, const char* source, const Options& options) {
  for (const int64_t size : options.sizes) {
    for (const int depth : options.depths) {
      const Setting setting = {size, depth};
      for (Contender& contender : contenders) {
        const Rate rate = TRY_CONTEXT(contender.run(setting), contender.name);
        report_rate(contender.name, setting, source, rate.gigabytes, "GB/s", {}, options.as_json);
        if (rate.gigabytes <= contender.best) continue;
        contender.best = rate.gigabytes;
        contender.best_setting = setting;
      }
    }
  }
  return {};
}

// Each at its best, in turn: medians, beside fio's.
Result<void> compare(std::vector<Contender>& contenders, const Options& options) {
  std::vector<std::vector<double>> gigabytes(contenders.size()), cpu_seconds(contenders.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const Rate rate = TRY(contenders[i].run(contenders[i].best_setting));
      gigabytes[i].push_back(rate.gigabytes);
      cpu_seconds[i].push_back(rate.cpu_seconds);
    }
  }
  std::optional<double> bound;  // fio's best
  for (size_t i = 0; i < contenders.size(); ++i) {
    if (!contenders[i].is_ours) bound = std::max(bound.value_or(0), median(gigabytes[i]));
  }
  for (size_t i = 0; i < contenders.size(); ++i) {
    const Contender& contender = contenders[i];
    report_rate(contender.name, contender.best_setting, "best", median(gigabytes[i]), "GB/s",
                contender.is_ours ? bound : std::nullopt, options.as_json);
    if (!contender.is_ours) continue;
    report_rate(contender.name, contender.best_setting, "cpu", median(cpu_seconds[i]), "cores", {},
                options.as_json);
  }
  return {};
}

Result<void> check_holds_experts(std::string_view what, int64_t bytes, const Options& options) {
  if (bytes >= 2 * options.expert_bytes) return {};
  return error(ErrorKind::usage, "{}: wanted at least two experts of {} bytes, got {}", what,
               options.expert_bytes, bytes);
}

Result<void> measure(const std::string& path, const Options& options) {
  int64_t file_bytes = 0;
  const char* source = "device";
  {
    const File file = TRY(File::open_direct(path));
    file_bytes = TRY(file.size_bytes());
    if (!file.is_direct()) {
      return error(ErrorKind::unavailable, "{}: its file system has no direct reads", path);
    }
    if (TRY(is_in_memory(file))) source = "memory";
  }
  TRY(check_holds_experts(path, file_bytes, options));
  RandomExperts experts(options, file_bytes);
  std::vector<Contender> contenders;
  const auto fio = [&](const char* name, bool aligns_buffers) {
    contenders.push_back(
        {.name = name, .is_ours = false, .run = [&, aligns_buffers](auto& setting) {
           return read_by_fio(path, setting, options, aligns_buffers);
         }});
  };
  if (has_fio()) {
    fio("fio", /*aligns_buffers=*/false);
    fio("fio-2M", /*aligns_buffers=*/true);
  } else {
    std::fputs("glmd-bench: fio is not there to compare with\n", stderr);
  }
  std::vector<std::pair<const char*, ReaderKind>> readers;
  if (IoUringReader::probe().ok()) readers.emplace_back("io_uring", ReaderKind::io_uring);
  readers.emplace_back("threads", ReaderKind::threads);
  for (const auto& [name, kind] : readers) {
    contenders.push_back({.name = name, .run = [&, kind = kind](auto& setting) -> Result<Rate> {
                            const OpenedReader opened = TRY(open_reader(path, kind, setting));
                            return experts.run_segments(*opened.reader, setting);
                          }});
  }
  TRY(sweep(contenders, source, options));

  const Setting of_daemon = {ReadQueueOptions().segment_bytes, ReaderSettings().in_flight_max};
  for (const auto& [name, kind] : readers) {
    const OpenedReader opened = TRY(open_reader(path, kind, of_daemon));
    const Rate rate = TRY(experts.run_experts(*opened.reader, of_daemon));
    report_rate(name, of_daemon, "experts", rate.gigabytes, "GB/s", {}, options.as_json);
  }
  const Setting last = contenders.back().best_setting;
  const Rate buffered = TRY(read_buffered(experts, path, last));
  report_rate("threads", last, "buffered", buffered.gigabytes, "GB/s", {}, options.as_json);
  const Rate mapped = TRY(read_mapped(experts, path, options));
  report_rate("mmap", {options.expert_bytes, 1}, "mapped", mapped.gigabytes, "GB/s", {},
              options.as_json);
  return compare(contenders, options);
}

// A file that no file system keeps as a hole. It has no name, so nothing is left of it however this
// program ends; it is opened again, by fio too, as long as this is open.
class ScratchFile {
 public:
  static Result<ScratchFile> create(const std::string& folder, int64_t bytes) {
    TRY(check_free_space(folder, bytes));
    std::string path = folder + "/glmd-bench-reads.XXXXXX";
    File file(::mkostemp(path.data(), O_CLOEXEC), path);
    if (file.descriptor() < 0) return output_error(folder, "make a file");
    ::unlink(path.c_str());
    std::vector<uint64_t> words(size_t{1} << 20);
    std::mt19937_64 random;
    std::generate(words.begin(), words.end(), random);
    const auto chunk_bytes = static_cast<int64_t>(words.size() * sizeof words[0]);
    for (int64_t at = 0; at < bytes; at += chunk_bytes) {
      words[0] = static_cast<uint64_t>(at);
      const auto count = static_cast<size_t>(std::min(chunk_bytes, bytes - at));
      TRY(file.write({reinterpret_cast<const uint8_t*>(words.data()), count}));
    }
    TRY(file.sync());
    forget_cached_pages(file);
    return ScratchFile(std::move(file));
  }
  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.descriptor()); }

 private:
  explicit ScratchFile(File file) : file_(std::move(file)) {}

  File file_;
};

// What O_DIRECT can read.
Result<void> check_blocks(std::string_view option, int64_t bytes) {
  constexpr int64_t bytes_max = int64_t{1} << 30;
  if (bytes % ReadQueue::alignment == 0 && bytes <= bytes_max) return {};
  return error(ErrorKind::usage, "{}: wanted a multiple of {} up to {} bytes, got {}", option,
               ReadQueue::alignment, bytes_max, bytes);
}

Result<void> run(const Options& options) {
  TRY(check_blocks("--expert", options.expert_bytes));
  for (const int64_t size : options.sizes) TRY(check_blocks("--sizes", size));
  if (!options.file.empty()) return measure(options.file, options);
  TRY(check_holds_experts("--size", options.size_bytes, options));
  const ScratchFile scratch = TRY(ScratchFile::create(options.folder, options.size_bytes));
  return measure(scratch.path(), options);
}

}  // namespace

BenchCommand add_reads_command(CLI::App& parent) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "reads", "expert reads from disk: GB/s by both readers, ratio to fio, CPU");
  auto* place = app->add_option_group("place");
  CLI::Option* file = place->add_option("--file", options->file, "read this file");
  place->add_option("--folder", options->folder, "make a file here, read it, remove it");
  place->require_option(1);
  app->add_option("--size", options->size_bytes, "bytes of a file made, more than caches hold")
      ->transform(byte_size(1))
      ->excludes(file);
  app->add_option("--expert", options->expert_bytes, "bytes of an expert")->transform(byte_size(1));
  app->add_option("--sizes", options->sizes, "bytes of a segment, and of fio's blocks")
      ->transform(byte_size(1))
      ->delimiter(',');
  app->add_option("--depths", options->depths, "segments under way")
      ->transform(within(1, 1024))
      ->delimiter(',');
  app->add_option("--seconds", options->seconds, "of each measurement")
      ->transform(within(0.05, 3600.0));
  app->add_option("--rounds", options->rounds, "medians of the last comparison are of so many")
      ->transform(within(1, 1000));
  app->add_flag("--json", options->as_json, "one object a line");
  return {app, [options] { return run(*options); }};
}

}  // namespace glmd
