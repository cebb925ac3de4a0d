#include "host/speed_probe.h"

#include <algorithm>
#include <atomic>
#include <random>

#include "platform/aligned_memory.h"
#include "platform/clock.h"
#include "platform/parallel.h"

namespace glmd {
namespace {

constexpr int64_t reads_max = 16;
constexpr int64_t disk_time_ns = 700'000'000, memory_time_ns = 100'000'000,
                  tasks_time_ns = 50'000'000;
constexpr int64_t memory_bytes_per_thread = int64_t{64} << 20;  // beyond what caches keep
constexpr int64_t page_bytes = 4096;

std::vector<const Tensor*> experts_of(const Container& container) {
  std::vector<const Tensor*> experts;
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout == TensorLayout::expert) experts.push_back(&tensor);
  }
  return experts;
}

// Experts in random order.
Result<double> measure_disk(const Container& container, ReaderKind kind, int64_t budget_bytes) {
  const std::vector<const Tensor*> experts = experts_of(container);
  if (experts.empty()) return 0.0;
  const auto widest =
      std::max_element(experts.begin(), experts.end(),
                       [](const Tensor* a, const Tensor* b) { return a->bytes < b->bytes; });
  const auto reads =
      static_cast<uint64_t>(probe_size((*widest)->bytes, /*threads=*/1, budget_bytes).reads);
  AlignedMemory targets =
      TRY(AlignedMemory::allocate(static_cast<int64_t>(reads) * (*widest)->bytes));
  // Pages are taken now: reads into untouched ones run at half the speed.
  std::fill(targets.bytes().begin(), targets.bytes().end(), uint8_t{1});
  const OpenedReader opened = TRY(open_block_reader(container.files(), {.kind = kind}));
  BlockReader* reader = opened.reader.get();
  std::mt19937_64 random(1);
  std::vector<int64_t> bytes_under_way(reads);
  const auto submit = [&](uint64_t place) {
    const Tensor& expert = *experts[random() % experts.size()];
    bytes_under_way[place] = expert.bytes;
    reader->submit({.file = expert.file,
                    .offset = expert.offset,
                    .bytes = expert.bytes,
                    .target = targets.data() + static_cast<int64_t>(place) * (*widest)->bytes,
                    .tag = place});
  };
  const SteadyClock clock;
  const int64_t begin_ns = clock.now_ns();
  for (uint64_t place = 0; place < reads; ++place) submit(place);
  int64_t bytes = 0;
  while (reader->outstanding() > 0) {
    ReadCompletion completion = reader->wait();
    TRY(std::move(completion.result));
    bytes += bytes_under_way[completion.tag];
    if (clock.now_ns() - begin_ns < disk_time_ns) submit(completion.tag);
  }
  return static_cast<double>(bytes) * 1e9 / static_cast<double>(clock.now_ns() - begin_ns);
}

uint64_t sum_of(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

Result<double> measure_memory(Team& team, int64_t bytes) {
  AlignedMemory memory = TRY(AlignedMemory::allocate(bytes));
  const auto words = static_cast<int64_t>(bytes / sizeof(uint64_t));
  auto* data = reinterpret_cast<uint64_t*>(memory.data());
  team.run(words, 512, [&](int64_t begin, int64_t end, int) {
    std::fill(data + begin, data + end, uint64_t{1});
  });
  const SteadyClock clock;
  const int64_t begin_ns = clock.now_ns();
  std::atomic<uint64_t> sum{0};
  int64_t passes = 0;
  while (clock.now_ns() - begin_ns < memory_time_ns) {
    team.run(words, 512,
             [&](int64_t begin, int64_t end, int) { sum += sum_of(data + begin, end - begin); });
    ++passes;
  }
  const auto ns = static_cast<double>(clock.now_ns() - begin_ns);
  CHECK(sum == static_cast<uint64_t>(words * passes));
  return static_cast<double>(bytes * passes) * 1e9 / ns;
}

// What a task takes beyond an even share of its work, which is made of units of a known time.
double measure_task(Team& team) {
  constexpr int64_t units_per_thread = 32, unit_ns = 2'000;
  const SteadyClock clock;
  const int64_t begin_ns = clock.now_ns();
  int64_t tasks = 0;
  while (clock.now_ns() - begin_ns < tasks_time_ns) {
    team.run(units_per_thread * team.thread_count(), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t unit_end_ns = clock.now_ns() + unit_ns;
        while (clock.now_ns() < unit_end_ns) {
        }
      }
    });
    ++tasks;
  }
  const int64_t beyond_ns = clock.now_ns() - begin_ns - tasks * units_per_thread * unit_ns;
  return std::max(0.0, static_cast<double>(beyond_ns) * 1e-9 / static_cast<double>(tasks));
}

}  // namespace

ProbeSize probe_size(int64_t expert_bytes, int threads, int64_t budget_bytes) {
  const int64_t bytes_max = budget_bytes / 2;
  return {.reads = std::clamp<int64_t>(bytes_max / expert_bytes, 1, reads_max),
          .memory_bytes = std::clamp(bytes_max / page_bytes * page_bytes, page_bytes,
                                     memory_bytes_per_thread * threads)};
}

Result<MachineSpeed> measure_team(int threads, int64_t budget_bytes) {
  MachineSpeed speed;
  Team team(threads);
  const int64_t memory_bytes = probe_size(1, threads, budget_bytes).memory_bytes;
  speed.memory_bytes_per_s = TRY_CONTEXT(measure_memory(team, memory_bytes), "measure the memory");
  speed.team_task_s = measure_task(team);
  return speed;
}

Result<MachineSpeed> measure_speed(const Container& container, ReaderKind reader, int threads,
                                   int64_t budget_bytes) {
  MachineSpeed speed = TRY(measure_team(threads, budget_bytes));
  speed.disk_bytes_per_s =
      TRY_CONTEXT(measure_disk(container, reader, budget_bytes), "measure the disk");
  return speed;
}

}  // namespace glmd
