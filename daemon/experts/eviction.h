// Which resident expert makes room: pure functions of how slots were used, so that policies can be
// replayed. Uses are counted with a half-life; two decayed counts keep their order for ever, so a
// slot stores the count as it would stand at time 0, in log2 (no overflow, no sweep), and the
// smallest is the coldest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace glmd {

// The half-life, in tokens, that an arena of this share of all experts does best with: the larger
// it is, the longer ago a use may lie that still says what comes back. A small one lives from the
// last few tokens. Longer half-lives gain up to 2 points where one text goes on for thousands of
// tokens and lose up to 4 where another begins every hundred (`glmd-replay` compares, at any size,
// with LRU, LFU and the optimum).
constexpr double half_life_tokens_for(double arena_share) {
  return std::max(2.0, 64 * (arena_share - 0.06));
}

struct SlotUse {
  double heat = -1e300;  // log2 of the decayed count, projected to time 0
  int64_t last_step = -1;
  bool is_wanted = false;  // by the step that runs: goes only where nothing else is left
};

// `heat` after `uses` more uses at `time`, in the unit of the half-life.
double add_uses(double heat, double uses, int64_t time, double half_life);

// The order of victims: what the step does not want, then the coldest, ties by least recent use.
bool goes_before(const SlotUse& a, const SlotUse& b);

// The layer that gives up a slot, when layer `own` needs one more and layer i holds held[i]: itself
// from its equal share on, rounded down, else the one that holds most (the lowest such). Rounded
// up, the slots that are over would go round, each time as a victim of another layer. A layer's own
// victims are chosen when its next experts are known, whereas those that other layers used last,
// seldom used before as most are, would go just before they are wanted again: without this, counts
// lose to LRU. own -1: no layer's.
int32_t choose_giver(std::span<const int64_t> held, int32_t own, int64_t slot_count);

// The victim of each layer, the first in that order, ties by lowest index, without looking at every
// slot: heaps of those whose expert nobody reads or pins. O(log n) a change.
class VictimQueue {
 public:
  VictimQueue(int64_t slot_count, int64_t layer_count)
      : uses_(slot_count), layers_(slot_count), places_(slot_count, -1), heaps_(layer_count) {}

  // The slot is evictable from now on, or its use changed. It stays with its layer until removed.
  void put(int32_t slot, int32_t layer, const SlotUse& use);
  void remove(int32_t slot);  // of no effect where it is not in the queue
  // -1 where nothing is evictable.
  int32_t first(int32_t layer) const { return heaps_[layer].empty() ? -1 : heaps_[layer].front(); }
  const SlotUse& use(int32_t slot) const { return uses_[slot]; }

 private:
  bool precedes(int32_t a, int32_t b) const;
  void settle(std::vector<int32_t>& heap, int32_t place);
  void set(std::vector<int32_t>& heap, int32_t place, int32_t slot);

  std::vector<SlotUse> uses_;                // by slot
  std::vector<int32_t> layers_;              // by slot
  std::vector<int32_t> places_;              // by slot: index in its heap, or -1
  std::vector<std::vector<int32_t>> heaps_;  // by layer: slots; none precedes its parent
};

}  // namespace glmd
