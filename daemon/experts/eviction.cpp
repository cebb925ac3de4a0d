#include "experts/eviction.h"

#include <algorithm>
#include <cmath>

#include "platform/check.h"

namespace glmd {

double add_uses(double heat, double uses, int64_t time, double half_life) {
  const double added = std::log2(uses) + static_cast<double>(time) / half_life;
  const double high = std::max(heat, added);
  return high + std::log2(1 + std::exp2(std::min(heat, added) - high));
}

bool goes_before(const SlotUse& a, const SlotUse& b) {
  if (a.is_wanted != b.is_wanted) return b.is_wanted;
  if (a.heat != b.heat) return a.heat < b.heat;
  return a.last_step < b.last_step;
}

int32_t choose_giver(std::span<const int64_t> held, int32_t own, int64_t slot_count) {
  const auto layer_count = static_cast<int64_t>(held.size());
  if (own >= 0 && held[own] > 0 && held[own] >= slot_count / layer_count) return own;
  return static_cast<int32_t>(std::max_element(held.begin(), held.end()) - held.begin());
}

bool VictimQueue::precedes(int32_t a, int32_t b) const {
  if (goes_before(uses_[a], uses_[b])) return true;
  return a < b && !goes_before(uses_[b], uses_[a]);
}

void VictimQueue::set(std::vector<int32_t>& heap, int32_t place, int32_t slot) {
  heap[place] = slot;
  places_[slot] = place;
}

// Moves the slot at `place` up or down to where it belongs.
void VictimQueue::settle(std::vector<int32_t>& heap, int32_t place) {
  const int32_t slot = heap[place];
  while (place > 0) {
    const int32_t parent = (place - 1) / 2;
    if (!precedes(slot, heap[parent])) break;
    set(heap, place, heap[parent]);
    place = parent;
  }
  const auto count = static_cast<int32_t>(heap.size());
  while (2 * place + 1 < count) {
    int32_t child = 2 * place + 1;
    if (child + 1 < count && precedes(heap[child + 1], heap[child])) ++child;
    if (!precedes(heap[child], slot)) break;
    set(heap, place, heap[child]);
    place = child;
  }
  set(heap, place, slot);
}

void VictimQueue::put(int32_t slot, int32_t layer, const SlotUse& use) {
  uses_[slot] = use;
  if (places_[slot] < 0) {
    layers_[slot] = layer;
    places_[slot] = static_cast<int32_t>(heaps_[layer].size());
    heaps_[layer].push_back(slot);
  }
  DCHECK(layers_[slot] == layer);
  settle(heaps_[layer], places_[slot]);
}

void VictimQueue::remove(int32_t slot) {
  const int32_t place = places_[slot];
  if (place < 0) return;
  std::vector<int32_t>& heap = heaps_[layers_[slot]];
  places_[slot] = -1;
  const int32_t last = heap.back();
  heap.pop_back();
  if (last == slot) return;
  set(heap, place, last);
  settle(heap, place);
}

}  // namespace glmd
