// Computes the routed experts of one layer: reads of the missing ones begin first, then whatever
// can be computed is, each arrival at once. Every (row, rank) has its own output row, so the order
// of arrival never reaches arithmetic. Thread: compute, with its team.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/feed_forward.h"
#include "experts/expert_cache.h"
#include "platform/function_ref.h"

namespace glmd {

// Experts in memory are computed in groups of so many rows; the last one may bring more.
constexpr int64_t group_rows_min = 256;

struct ExpertShape {
  int64_t hidden = 0;  // columns of gate and up, rows of down
  int64_t width = 0;   // rows of gate and of up, columns of down
  BlockFormat format = BlockFormat::f32;
};

// One expert of this layer and what it has to do.
struct ExpertWork {
  int32_t expert = 0;                // index in the cache
  std::span<const int32_t> rows;     // rows of the input
  std::span<const int32_t> outputs;  // rows of the output, one per row
  double uses = 0;                   // what the rows count for when experts are evicted
};

// What one layer asks for.
struct ExpertStep {
  ExpertShape shape;
  ExpertRange layer;
  Pace pace = Pace::step;
  std::span<const ExpertWork> works;
  // What else there is to do while experts load; called once, when their reads have begun.
  FunctionRef<void()> meanwhile;
};

// Scratch that lives from step to step. Between steps it holds no lease.
struct ExpertStepScratch {
  struct Hit {
    const ExpertWork* work;
    ExpertLease lease;
  };
  std::vector<ExpertWant> wants;
  std::vector<const ExpertWork*> absent;
  std::vector<Hit> hits;
  ExpertScratch feed_forward;
};

// outputs[work.outputs[i]] = down(silu(gate x) * up x) for x = input row work.rows[i].
Result<void> run_experts(ExpertCache& cache, const Compute& compute, const ExpertStep& step,
                         const Activations& input, ExpertStepScratch& scratch, float* outputs);

}  // namespace glmd
