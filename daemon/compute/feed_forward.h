// down(silu(gate x) * up x), for a dense layer, a shared expert, or several routed experts at once:
// the team takes the tiles of all their matrices as one list, so that it meets three times a group
// and not three times an expert. Thread: compute, with its team.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/activation_rows.h"

namespace glmd {

struct FeedForward {
  Matrix gate_up, down;
  // One expert's rows of the input, and where their results go; without any: all rows, in order.
  std::span<const int32_t> rows, outputs;
};

// Rows of one member that a kernel takes at once.
struct MemberPanel {
  const FeedForward* member;
  int64_t member_row, group_row, count;  // the first among the member's, and the group's rows
};

// Results of one thread at a time: they stay in its cache.
constexpr int64_t result_floats_max = 16384;

// Scratch that lives from step to step.
struct ExpertScratch {
  struct Gathered {
    std::vector<float> values, scales;
    std::vector<int8_t> codes;
    std::vector<int32_t> sums;
  } gathered;
  std::vector<float> hidden;  // [rows of the group][width]
  ActivationRows middle;
  std::vector<float> results;       // per thread
  std::vector<FeedForward> group;   // for callers to put a group together
  std::vector<MemberPanel> panels;  // of all members of a group
  std::vector<int32_t> sources;     // per row of the group: its row of the input
};

// output[o * output_stride + r]. All members have the same shape and format.
void run_feed_forward(const Compute& compute, std::span<const FeedForward> group,
                      const Activations& input, ExpertScratch& scratch, float* output,
                      int64_t output_stride);

}  // namespace glmd
