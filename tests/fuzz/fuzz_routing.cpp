// Any bytes as a routing trace or a usage history, the first byte choosing which. What is accepted
// must also work: a trace can be replayed, a history says what to read first.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "experts/routing_trace.h"
#include "experts/usage_history.h"
#include "storage/manifest.h"
#include "tools/replay/cache_replay.h"

namespace glmd {
namespace {

constexpr int64_t replayed_experts_max = 1 << 14;  // of all layers: more would only take longer

void require(bool condition) {
  if (!condition) std::abort();
}

// The path of a file with these bytes.
std::string file_of(std::string_view bytes) {
  static const int memory = memfd_create("fuzz", 0);
  require(ftruncate(memory, 0) == 0);
  require(pwrite(memory, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return "/proc/self/fd/" + std::to_string(memory);
}

void require_sound(const ReplayTrace& trace) {
  size_t uses = 0;
  for (const ReplayStep& step : trace.steps) {
    require(trace.expert_bytes.at(step.layer) > 0);
    require(step.rows > 0);
    require(step.first_use == uses);
    uses += step.use_count;
  }
  require(trace.uses.size() == uses);
  for (const ReplayUse& use : trace.uses) require(use.expert < trace.experts_per_layer);
}

// Version 2 with its header's checksum made right; else nothing behind it would be reached.
std::string with_header_hash(std::string_view bytes) {
  std::string content(bytes);
  uint32_t layers = 0;
  if (content.size() < 40) return content;
  std::memcpy(&layers, content.data() + 12, sizeof layers);
  const size_t end = 32 + size_t{layers} * 8;
  if (end + sizeof(uint64_t) > content.size()) return content;
  const uint64_t hash = hash_bytes(std::string_view(content).substr(0, end));
  std::memcpy(content.data() + end, &hash, sizeof hash);
  return content;
}

void read_as_trace(std::string_view bytes) {
  const bool is_version_1 = bytes.size() > 8 && bytes[8] == 1;
  Result<RoutingTraceReader> reader = RoutingTraceReader::open(
      file_of(is_version_1 ? std::string(bytes) : with_header_hash(bytes)));
  if (!reader.ok()) return;
  const Result<ReplayTrace> recorded = recorded_trace(reader.value(), 1);
  if (!recorded.ok()) return;
  require_sound(recorded.value());
  const ReplayTrace& trace = recorded.value();
  if (trace.expert_count() == 0 || trace.expert_count() > replayed_experts_max) return;
  for (const int64_t slots : {int64_t{2}, trace.experts_per_layer}) {
    const ReplayTotals optimum = replay(trace, parse_policy("belady").value(), slots);
    for (const char* name : {"glmd", "lru", "lfu", "decay:0.01"}) {
      const ReplayTotals totals = replay(trace, parse_policy(name).value(), slots);
      require(totals.wanted == optimum.wanted);
      require(totals.hits <= optimum.hits);
      require(totals.read_bytes >= 0);
    }
  }
}

// Any bytes as the counts behind a sound header, and any file.
void read_as_history(std::string_view bytes) {
  const RoutingShape shape{
      .identity = 7, .experts = 4, .chosen = 2, .expert_bytes = {0, 4096, 8192}};
  UsageHistory history(shape);
  std::string content(bytes);
  if (content.size() > sizeof(uint64_t)) {
    const size_t end = content.size() - sizeof(uint64_t);
    const uint64_t hash = hash_bytes({reinterpret_cast<const uint8_t*>(content.data()), end});
    std::memcpy(content.data() + end, &hash, sizeof hash);
  }
  if (!history.load(file_of(content)).ok()) return;
  const std::vector<float> prior = usage_prior(history.counts(), shape.experts, shape.chosen, 4);
  for (const float uses : prior) require(uses >= 0 && uses <= 8.01F);
  std::vector<ExpertExtent> extents(prior.size());
  for (ExpertExtent& extent : extents) extent.bytes = 4096;
  std::vector<int32_t> order = warm_start_order(prior, extents, 5 * 4096);
  require(order.size() <= 5);
  std::sort(order.begin(), order.end());
  require(std::adjacent_find(order.begin(), order.end()) == order.end());
}

}  // namespace
}  // namespace glmd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) glmd::read_as_trace(bytes);
  if (data[0] % 2 == 1) glmd::read_as_history(bytes);
  return 0;
}
