#include "experts/run_experts.h"

#include <algorithm>

#include "storage/container.h"

namespace glmd {
namespace {

FeedForward matrices_of(const ExpertShape& shape, const ExpertWork& work, const uint8_t* bytes) {
  return {.gate_up = {bytes, shape.width, shape.hidden, shape.format},
          .down = {bytes + expert_down_offset(shape.format, shape.width, shape.hidden),
                   shape.hidden, shape.width, shape.format},
          .rows = work.rows,
          .outputs = work.outputs};
}

// In the order in which they lie on disk.
void list_absent(const ExpertCache& cache, std::span<const ExpertWork> works,
                 std::vector<const ExpertWork*>& absent) {
  absent.clear();
  for (const ExpertWork& work : works) {
    if (cache.is_absent(work.expert)) absent.push_back(&work);
  }
  std::sort(absent.begin(), absent.end(), [&](const ExpertWork* a, const ExpertWork* b) {
    return cache.is_stored_before(a->expert, b->expert);
  });
}

// The next hits, as many as the team needs to be busy; their leases end with them.
void run_hits(const Compute& compute, const ExpertShape& shape, ExpertStepScratch& scratch,
              size_t& done, const Activations& input, float* outputs) {
  std::vector<FeedForward>& group = scratch.feed_forward.group;
  const size_t first = done;
  int64_t rows = 0;
  group.clear();
  while (done < scratch.hits.size() && rows < group_rows_min) {
    const ExpertStepScratch::Hit& hit = scratch.hits[done++];
    group.push_back(matrices_of(shape, *hit.work, hit.lease.bytes()));
    rows += std::ssize(hit.work->rows);
  }
  run_feed_forward(compute, group, input, scratch.feed_forward, outputs, shape.hidden);
  for (size_t i = first; i < done; ++i) scratch.hits[i].lease = ExpertLease();
}

}  // namespace

Result<void> run_experts(ExpertCache& cache, const Compute& compute, const ExpertStep& step,
                         const Activations& input, ExpertStepScratch& scratch, float* outputs) {
  const auto experts = static_cast<size_t>(step.layer.count);  // no step has more works
  auto& [wants, absent, hits, feed_forward] = scratch;
  wants.clear();
  wants.reserve(experts);
  absent.reserve(experts);
  hits.clear();
  hits.reserve(experts);
  feed_forward.group.reserve(experts);
  for (const ExpertWork& work : step.works) {
    wants.push_back({work.expert, work.uses});
  }
  cache.begin_step(step.layer, wants, step.pace);
  list_absent(cache, step.works, absent);
  for (const ExpertWork& work : step.works) {
    std::optional<ExpertLease> lease = cache.find(work.expert);
    if (lease) hits.push_back({&work, std::move(*lease)});
  }

  const size_t arrival_count = step.works.size() - hits.size();  // absent, or on their way
  size_t hits_done = 0, begun = 0, arrivals_done = 0;
  bool has_more_to_do = static_cast<bool>(step.meanwhile);
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
      run_hits(compute, step.shape, scratch, hits_done, input, outputs);
      continue;
    }
    if (!arrival) arrival = cache.wait_for_arrival();
    ++arrivals_done;
    if (!arrival->lease.ok()) {
      cache.drain();
      hits.clear();
      return std::move(arrival->lease).error();
    }
    const auto work = std::find_if(
        step.works.begin(), step.works.end(),
        [&](const ExpertWork& candidate) { return candidate.expert == arrival->expert; });
    CHECK(work != step.works.end());
    const FeedForward one = matrices_of(step.shape, *work, arrival->lease.value().bytes());
    run_feed_forward(compute, {&one, 1}, input, feed_forward, outputs, step.shape.hidden);
  }
  return {};
}

}  // namespace glmd
