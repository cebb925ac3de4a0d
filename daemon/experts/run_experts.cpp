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

struct Hit {
  const ExpertWork* work;
  ExpertLease lease;
};

// In the order in which they lie on disk.
std::vector<const ExpertWork*> absent_of(const ExpertCache& cache,
                                         std::span<const ExpertWork> works) {
  std::vector<const ExpertWork*> absent;
  for (const ExpertWork& work : works) {
    if (cache.is_absent(work.expert)) absent.push_back(&work);
  }
  std::sort(absent.begin(), absent.end(), [&](const ExpertWork* a, const ExpertWork* b) {
    return cache.is_stored_before(a->expert, b->expert);
  });
  return absent;
}

// The next hits, as many as the team needs to be busy; their leases end with them.
void run_hits(const Compute& compute, const ExpertShape& shape, std::span<Hit> hits, size_t& done,
              const Activations& input, ExpertScratch& scratch, float* outputs) {
  const size_t first = done;
  int64_t rows = 0;
  scratch.group.clear();
  while (done < hits.size() && rows < group_rows_min) {
    const Hit& hit = hits[done++];
    scratch.group.push_back(matrices_of(shape, *hit.work, hit.lease.bytes()));
    rows += std::ssize(hit.work->rows);
  }
  run_feed_forward(compute, scratch.group, input, scratch, outputs, shape.hidden);
  for (size_t i = first; i < done; ++i) hits[i].lease = ExpertLease();
}

}  // namespace

Result<void> run_experts(ExpertCache& cache, const Compute& compute, const ExpertStep& step,
                         const Activations& input, ExpertScratch& scratch, float* outputs) {
  std::vector<ExpertWant> wants;
  for (const ExpertWork& work : step.works) {
    wants.push_back({work.expert, static_cast<int64_t>(work.rows.size()), work.uses});
  }
  cache.begin_step(step.layer, wants, step.pace);
  const std::vector<const ExpertWork*> absent = absent_of(cache, step.works);
  std::vector<Hit> hits;
  for (const ExpertWork& work : step.works) {
    std::optional<ExpertLease> lease = cache.find(work.expert);
    if (lease) hits.push_back({&work, std::move(*lease)});
  }

  const size_t arrival_count = step.works.size() - hits.size();  // absent, or on their way
  size_t hits_done = 0, begun = 0, arrivals_done = 0;
  bool has_more_to_do = step.meanwhile != nullptr;
  while (hits_done < hits.size() || arrivals_done < arrival_count || has_more_to_do) {
    // Reads first: they run while the rest computes.
    while (begun < absent.size() && cache.start_load(absent[begun]->expert)) ++begun;
    if (has_more_to_do) {
      has_more_to_do = false;
      step.meanwhile();
      continue;
    }
    std::optional<ExpertCache::Arrival> arrival = cache.poll_arrival();
    if (!arrival && hits_done < hits.size()) {
      run_hits(compute, step.shape, hits, hits_done, input, scratch, outputs);
      continue;
    }
    if (!arrival) arrival = cache.wait_for_arrival();
    ++arrivals_done;
    if (!arrival->lease.ok()) {
      cache.drain();
      return std::move(arrival->lease).error();
    }
    const auto work = std::find_if(
        step.works.begin(), step.works.end(),
        [&](const ExpertWork& candidate) { return candidate.expert == arrival->expert; });
    CHECK(work != step.works.end());
    const FeedForward one = matrices_of(step.shape, *work, arrival->lease.value().bytes());
    run_feed_forward(compute, {&one, 1}, input, scratch, outputs, step.shape.hidden);
  }
  return {};
}

}  // namespace glmd
