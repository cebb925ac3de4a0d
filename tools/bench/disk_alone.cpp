#include "disk_alone.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "experts/expert_cache.h"
#include "experts/usage_history.h"
#include "platform/clock.h"
#include "tools/replay/instant_reader.h"

namespace glmd {

// As a model does that has this prior.
static Result<ExpertCache> open_cache(const Slice& slice, int64_t arena_bytes,
                                      InstantReader& reader) {
  std::vector<ExpertExtent> extents;
  for (const Tensor* tensor : slice.tensors) {
    extents.push_back({.file = tensor->file,
                       .offset = tensor->offset,
                       .bytes = tensor->bytes,
                       .name = {},
                       .file_name = {}});
  }
  ExpertCache cache =
      TRY(ExpertCache::create(extents, arena_bytes, reader, Verify::off, slice.experts));
  const std::vector<float> prior = slice.usage_prior();
  for (size_t i = 0; i < prior.size(); ++i) cache.seed_heat(static_cast<int32_t>(i), prior[i]);
  cache.plan_warm_up(warm_start_order(prior, extents, arena_bytes));
  while (cache.warm_up()) {
  }
  return cache;
}

Result<Misses> misses_of(const Slice& slice, const RoutingTable& routing,
                         const MissOptions& options) {
  InstantReader reader;
  ExpertCache cache = TRY(open_cache(slice, options.arena_bytes, reader));
  cache.allow_read_ahead(options.looks_ahead);
  Misses misses, wanted;
  for (int64_t token = 0; token < options.warm_up + options.tokens; ++token) {
    cache.advance(1);
    for (int64_t layer = 0; layer < std::ssize(slice.layers); ++layer) {
      std::vector<ExpertWant> wants;
      std::vector<const Tensor*> missed, all;
      for (const int32_t expert : routing.experts_of(token, layer)) {
        wants.push_back({.expert = expert, .uses = 1});
        all.push_back(slice.tensors[expert]);
      }
      const ExpertRange range{static_cast<int32_t>(layer * slice.experts),
                              static_cast<int32_t>(slice.experts)};
      for (const int32_t expert : run_step(cache, range, wants, Pace::step)) {
        missed.push_back(slice.tensors[expert]);
      }
      if (token < options.warm_up) continue;
      misses.push_back(std::move(missed));
      wanted.push_back(std::move(all));
    }
  }
  const auto is_empty = [](const auto& missed) { return missed.empty(); };
  return std::all_of(misses.begin(), misses.end(), is_empty) ? wanted : misses;
}

Result<DiskAlone> DiskAlone::open(const Container& container, const Slice& slice, ReaderKind reader,
                                  Misses misses) {
  OpenedReader opened = TRY(open_block_reader(container.files(), {.kind = reader}));
  AlignedMemory targets = TRY(AlignedMemory::allocate(reads_under_way * slice.expert_bytes()));
  std::memset(targets.data(), 1, static_cast<size_t>(targets.size_bytes()));
  return DiskAlone(std::move(misses), slice.expert_bytes(), std::move(targets), std::move(opened));
}

DiskAlone::DiskAlone(Misses misses, int64_t expert_bytes, AlignedMemory targets,
                     OpenedReader opened)
    : misses_(std::move(misses)),
      expert_bytes_(expert_bytes),
      targets_(std::move(targets)),
      opened_(std::move(opened)),
      free_(reads_under_way) {
  std::iota(free_.begin(), free_.end(), 0);
}

Result<double> DiskAlone::rate(double seconds_max) {
  return measure(false, [&](double seconds) { return seconds < seconds_max; });
}

Result<double> DiskAlone::serial_rate(double seconds_max) {
  return measure(true, [&](double seconds) { return seconds < seconds_max; });
}

Result<double> DiskAlone::rate_until(const std::atomic<bool>& is_done) {
  return measure(false, [&](double) { return !is_done; });
}

Result<double> DiskAlone::measure(bool waits_for_layers,
                                  const std::function<bool(double seconds)>& goes_on) {
  const SteadyClock clock;
  BlockReader& reader = *opened_.reader;
  const int64_t begin_ns = clock.now_ns();
  const auto seconds = [&] { return static_cast<double>(clock.now_ns() - begin_ns) * 1e-9; };
  int64_t bytes = 0;
  while (goes_on(seconds())) {
    for (const Tensor* tensor : misses_[next_++ % misses_.size()]) {
      if (reader.outstanding() == reads_under_way) TRY(finish_one());
      reader.submit({.file = tensor->file,
                     .offset = tensor->offset,
                     .bytes = tensor->bytes,
                     .target = targets_.data() + free_.back() * expert_bytes_,
                     .tag = static_cast<uint64_t>(free_.back())});
      free_.pop_back();
      bytes += tensor->bytes;
    }
    if (waits_for_layers) TRY(finish_all());
  }
  TRY(finish_all());
  return static_cast<double>(bytes) / seconds();
}

Result<void> DiskAlone::finish_one() {
  ReadCompletion completion = opened_.reader->wait();
  free_.push_back(static_cast<int64_t>(completion.tag));
  return std::move(completion.result);
}

Result<void> DiskAlone::finish_all() {
  while (opened_.reader->outstanding() > 0) TRY(finish_one());
  return {};
}

}  // namespace glmd
