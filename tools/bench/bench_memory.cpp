#include "bench_memory.h"

#include <algorithm>

#include "host/memory_sources.h"

namespace glmd {

constexpr int64_t program_bytes = int64_t{64} << 20;  // with queues, stacks, a parsed container

std::vector<MemoryTerm> terms_of(const ModelSizes& sizes, const OpenModel& model) {
  const int64_t scratch_bytes = sizes.scratch.bytes(
      {.rows = model.rows, .logits = 1, .threads = model.threads, .tokens = model.tokens_max});
  return {{"dense weights", sizes.dense_bytes},
          {"KV cache", model.kv_pool_bytes},
          {"scratch", scratch_bytes}};
}

Result<void> check_memory(std::span<const MemoryTerm> terms, std::span<const MemoryLimit> limits) {
  int64_t total_bytes = program_bytes;
  std::string sum;
  for (const MemoryTerm& term : terms) {
    total_bytes += term.bytes;
    sum += fmt::format("\n{:<16}{:>16} bytes", term.name, term.bytes);
  }
  const auto least = std::min_element(
      limits.begin(), limits.end(),
      [](const MemoryLimit& a, const MemoryLimit& b) { return a.bytes < b.bytes; });
  if (least == limits.end() || total_bytes <= least->bytes) return {};
  return error(ErrorKind::no_memory,
               "memory: wanted {} bytes, got {} ({}); the sum is{}\n{:<16}{:>16} bytes",
               total_bytes, least->bytes, least->name, sum, "program", program_bytes);
}

Result<void> check_memory(std::span<const MemoryTerm> terms) {
  std::vector<MemoryLimit> limits = cgroup_limits();
  limits.push_back(TRY(available_memory()));
  return check_memory(terms, limits);
}

}  // namespace glmd
