// Which resident expert makes room: a pure function of how slots were used, so that policies can be
// replayed. Uses are counted with a half-life; two decayed counts keep their order for ever, so a
// slot stores the count as it would stand at step 0, in log2 (no overflow, no sweep), and the
// smallest is the coldest.
#pragma once

#include <cstdint>
#include <span>

namespace glmd {

constexpr double use_half_life_steps = 64;

// The half-life, in tokens, that an arena of this share of all experts does best with. A small one
// lives from the last few tokens; from about 21 of 256 experts a layer on, what a text keeps coming
// back to pays (`glmd-replay` compares, at any size, with LRU, LFU and the optimum).
constexpr double small_arena_share = 1.0 / 12;
constexpr double half_life_tokens_for(double arena_share) {
  return arena_share < small_arena_share ? 2 : 64;
}

struct SlotUse {
  double heat = -1e300;  // log2 of the decayed count, projected to step 0
  int64_t last_step = -1;
  bool is_evictable = false;  // holds an expert, not pinned, not wanted by the step that runs
};

// `heat` after `uses` more uses at `step`. Where the clock moves once a layer, a token is as many
// steps as there are layers with experts, and the half-life must be given in those.
double add_uses(double heat, int64_t uses, int64_t step,
                double half_life_steps = use_half_life_steps);

// The coldest evictable slot, ties by least recent use, then lowest index; -1 where there is none.
int32_t choose_victim(std::span<const SlotUse> slots);

}  // namespace glmd
