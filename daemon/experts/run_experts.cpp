#include "experts/run_experts.h"

#include <algorithm>

#include "storage/container.h"

namespace glmd {
namespace {

constexpr int64_t group_rows_min = 256;

FeedForward matrices_of(const ExpertShape& shape, const ExpertWork& work, const uint8_t* bytes) {
  return {.gate_up = {bytes, shape.width, shape.hidden, shape.format},
          .down = {bytes + expert_down_offset(shape.format, shape.width, shape.hidden),
                   shape.hidden, shape.width, shape.format},
          .rows = work.rows,
          .outputs = work.outputs};
}

}  // namespace

Result<void> run_experts(ExpertCache& cache, const Compute& compute, const ExpertShape& shape,
                         std::span<const ExpertWork> works, const Activations& input,
                         ExpertScratch& scratch, float* outputs) {
  struct Hit {
    const ExpertWork* work;
    ExpertLease lease;
  };
  std::vector<Hit> hits;
  std::vector<const ExpertWork*> misses;
  for (const ExpertWork& work : works)
    cache.want(work.expert, static_cast<int64_t>(work.rows.size()));
  for (const ExpertWork& work : works) {
    std::optional<ExpertLease> lease = cache.find(work.expert);
    if (lease) {
      hits.push_back({&work, std::move(*lease)});
    } else {
      misses.push_back(&work);
    }
  }

  size_t hits_done = 0, misses_started = 0, misses_done = 0;
  while (hits_done < hits.size() || misses_done < misses.size()) {
    // Reads first: they run while the resident experts compute.
    while (misses_started < misses.size() && cache.start_load(misses[misses_started]->expert)) {
      ++misses_started;
    }
    if (hits_done < hits.size()) {
      const size_t first = hits_done;
      int64_t rows = 0;
      scratch.group.clear();
      while (hits_done < hits.size() && rows < group_rows_min) {
        const Hit& hit = hits[hits_done++];
        scratch.group.push_back(matrices_of(shape, *hit.work, hit.lease.bytes()));
        rows += static_cast<int64_t>(hit.work->rows.size());
      }
      run_feed_forward(compute, scratch.group, input, scratch, outputs, shape.hidden);
      for (size_t i = first; i < hits_done; ++i) hits[i].lease = ExpertLease();
      continue;
    }
    ExpertCache::Arrival arrival = cache.wait_for_arrival();
    ++misses_done;
    if (!arrival.lease.ok()) {
      cache.drain();
      return std::move(arrival.lease).error();
    }
    const auto work = std::find_if(misses.begin(), misses.end(), [&](const ExpertWork* candidate) {
      return candidate->expert == arrival.expert;
    });
    CHECK(work != misses.end());
    const FeedForward one = matrices_of(shape, **work, arrival.lease.value().bytes());
    run_feed_forward(compute, {&one, 1}, input, scratch, outputs, shape.hidden);
  }
  return {};
}

}  // namespace glmd
