#include "experts/expert_slots.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "platform/check.h"

namespace glmd {
namespace {

constexpr int64_t slots_min = 2;
// Of a class's slots: as few as look-ahead fills while a layer computes; residents miss the others.
constexpr int64_t guesses_min = 2, guesses_max = 16;
constexpr int64_t slots_per_guess = 32;
// Buffers of a stream: as many as a reader has under way.
constexpr int64_t passing_max = 16;
constexpr int64_t slots_per_passing = 8;

struct ClassSize {
  int64_t bytes = 0, expert_count = 0, slot_count = 0;
};

// Classes of experts by size with their floor of slots.
std::vector<ClassSize> classes_of(std::span<const int64_t> expert_bytes) {
  std::map<int64_t, int64_t> counts;
  for (const int64_t bytes : expert_bytes) ++counts[bytes];
  std::vector<ClassSize> classes;
  for (const auto& [bytes, count] : counts) {
    classes.push_back(
        {.bytes = bytes, .expert_count = count, .slot_count = std::min(count, slots_min)});
  }
  return classes;
}

int64_t slot_bytes(std::span<const ClassSize> classes) {
  int64_t bytes = 0;
  for (const ClassSize& one : classes) bytes += one.bytes * one.slot_count;
  return bytes;
}

// Above the floor, the same share of each class; what is left over goes to whom it fits.
void share_out(std::span<ClassSize> classes, int64_t arena_bytes) {
  const auto missing = [](const ClassSize& one) { return one.expert_count - one.slot_count; };
  int64_t missing_bytes = 0;
  for (const ClassSize& one : classes) missing_bytes += one.bytes * missing(one);
  if (missing_bytes == 0) return;
  const int64_t free_bytes = std::max<int64_t>(0, arena_bytes - slot_bytes(classes));
  const double share =
      std::min(1.0, static_cast<double>(free_bytes) / static_cast<double>(missing_bytes));
  for (ClassSize& one : classes) {
    one.slot_count += static_cast<int64_t>(share * static_cast<double>(missing(one)));
  }
  for (ClassSize& one : classes) {
    const int64_t left_bytes = std::max<int64_t>(0, arena_bytes - slot_bytes(classes));
    one.slot_count += std::min(missing(one), left_bytes / one.bytes);
  }
}

}  // namespace

ExpertLease& ExpertLease::operator=(ExpertLease&& other) noexcept {
  std::swap(slots_, other.slots_);
  std::swap(slot_, other.slot_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ExpertLease::~ExpertLease() {
  if (slots_ != nullptr) slots_->unpin(slot_);
}

int64_t ExpertSlots::arena_bytes_min(std::span<const int64_t> expert_bytes) {
  return slot_bytes(classes_of(expert_bytes));
}

Result<ExpertSlots> ExpertSlots::create(std::span<const int64_t> expert_bytes, int64_t arena_bytes,
                                        int64_t experts_per_layer) {
  std::vector<ClassSize> sizes = classes_of(expert_bytes);
  if (arena_bytes < slot_bytes(sizes)) {
    return error(ErrorKind::no_memory, "expert arena: wanted at least {} bytes, got {}",
                 slot_bytes(sizes), arena_bytes);
  }
  share_out(sizes, arena_bytes);

  ExpertSlots slots;
  slots.arena_ = TRY(AlignedMemory::allocate(slot_bytes(sizes)));
  uint8_t* next = slots.arena_.data();
  std::map<int64_t, int32_t> class_of;
  for (const ClassSize& size : sizes) {
    const auto index = static_cast<int32_t>(slots.classes_.size());
    class_of[size.bytes] = index;
    SizeClass& one = slots.classes_.emplace_back();
    one.bytes = size.bytes;
    one.expert_count = size.expert_count;
    one.slot_count = size.slot_count;
    one.free.resize(static_cast<size_t>(size.slot_count));
    std::iota(one.free.rbegin(), one.free.rend(), std::ssize(slots.slots_));  // the first on top
    for (int64_t i = 0; i < size.slot_count; ++i, next += size.bytes) {
      slots.slots_.push_back({.bytes = next, .size_class = index});
    }
  }
  std::map<std::pair<int32_t, int64_t>, int32_t> layers;
  for (const int64_t bytes : expert_bytes) {
    const int32_t size_class = class_of[bytes];
    std::vector<int64_t>& held = slots.classes_[size_class].layer_held;
    const auto [layer, is_new] =
        layers.try_emplace({size_class, std::ssize(slots.experts_) / experts_per_layer},
                           static_cast<int32_t>(held.size()));
    if (is_new) held.push_back(0);
    slots.experts_.push_back({.size_class = size_class, .layer = layer->second, .use = {}});
  }
  for (SizeClass& one : slots.classes_) {
    one.victims = VictimQueue(std::ssize(slots.slots_), std::ssize(one.layer_held));
  }
  return slots;
}

int64_t ExpertSlots::SizeClass::ahead_count() const {
  return count(SlotPurpose::guessed) + count(SlotPurpose::cancelled) +
         count(SlotPurpose::discarded) + count(SlotPurpose::warming);
}

int64_t ExpertSlots::SizeClass::guess_share() const {
  const int64_t least = std::min(guesses_min, slot_count / slots_per_passing);
  return std::clamp(slot_count / slots_per_guess, least, guesses_max);
}

int64_t ExpertSlots::SizeClass::passing_share() const {
  return std::min(passing_max, slot_count / slots_per_passing);
}

int32_t ExpertSlots::SizeClass::take_free() {
  if (free.empty()) return -1;
  const int32_t slot = free.back();
  free.pop_back();
  return slot;
}

// Of the layer that gives, else the first of all.
int32_t ExpertSlots::SizeClass::first_victim(int32_t layer) const {
  int32_t victim = victims.first(choose_giver(layer_held, layer, count(SlotPurpose::resident)));
  const bool gives_none = victim < 0;
  for (int32_t other = 0; gives_none && other < std::ssize(layer_held); ++other) {
    const int32_t slot = victims.first(other);
    if (slot < 0) continue;
    if (victim < 0 || goes_before(victims.use(slot), victims.use(victim))) victim = slot;
  }
  return victim;
}

int32_t ExpertSlots::SizeClass::first_unwanted(int32_t layer) const {
  const int32_t victim = first_victim(layer);
  return victim < 0 || victims.use(victim).is_wanted ? -1 : victim;
}

// Its expert makes room; -1: there is none that could.
int32_t ExpertSlots::take_used(int32_t slot) {
  if (slot < 0) return -1;
  give_up(slots_[slot].expert);
  return classes_[slots_[slot].size_class].take_free();
}

int32_t ExpertSlots::first_whole(std::span<const int32_t> slots) const {
  for (const int32_t slot : slots) {
    if (slots_[slot].is_whole) return slot;
  }
  return -1;
}

// Guesses keep their slots until their layer is asked: as many as the floor are left beside them,
// or other layers could read nothing.
int32_t ExpertSlots::take_spare(SizeClass& size_class) {
  const bool has_spare = size_class.slot_count - size_class.ahead_count() > slots_min;
  int32_t slot = has_spare ? size_class.take_free() : -1;
  if (slot < 0) slot = take_used(first_whole(size_class.discarded));
  if (slot < 0 && has_spare) slot = take_used(size_class.first_victim(-1));
  return slot >= 0 ? slot : take_used(first_whole(size_class.guessed));
}

void ExpertSlots::shrink(SizeClass& size_class, int64_t slot_count) {
  while (size_class.slot_count > slot_count) {
    const int32_t index = take_spare(size_class);
    if (index < 0) return;
    Slot& slot = slots_[index];
    slot.is_given_back = true;
    if (std::exchange(slot.is_held, false)) add_held_bytes(-size_class.bytes);
    arena_.give_back({slot.bytes, static_cast<size_t>(size_class.bytes)});
    --size_class.slot_count;
  }
}

void ExpertSlots::grow(int32_t size_class, int64_t slot_count) {
  SizeClass& one = classes_[size_class];
  for (size_t slot = 0; slot < slots_.size() && one.slot_count < slot_count; ++slot) {
    if (slots_[slot].size_class != size_class || !slots_[slot].is_given_back) continue;
    slots_[slot].is_given_back = false;
    one.free.push_back(static_cast<int32_t>(slot));
    ++one.slot_count;
  }
}

int64_t ExpertSlots::resize(int64_t arena_bytes) {
  std::vector<ClassSize> sizes;
  for (const SizeClass& one : classes_) {
    sizes.push_back({one.bytes, one.expert_count, std::min(one.expert_count, slots_min)});
  }
  share_out(sizes, std::min(arena_bytes, arena_.size_bytes()));
  int64_t bytes = 0;
  for (size_t i = 0; i < classes_.size(); ++i) {
    const int64_t stranded = classes_[i].count(SlotPurpose::stranded);
    const int64_t slot_count =
        std::max(std::min(classes_[i].expert_count, slots_min), sizes[i].slot_count - stranded);
    shrink(classes_[i], slot_count);
    grow(static_cast<int32_t>(i), slot_count);
    bytes += (classes_[i].slot_count + stranded) * classes_[i].bytes;
  }
  return bytes;
}

// Tells the queue of victims what changed.
void ExpertSlots::refresh(int32_t index) {
  const Slot& slot = slots_[index];
  VictimQueue& victims = classes_[slot.size_class].victims;
  if (slot.expert >= 0 && slot.is_whole && slot.pins == 0 && !is_ahead(slot.purpose)) {
    victims.put(index, experts_[slot.expert].layer, use(slot.expert));
  } else {
    victims.remove(index);
  }
}

void ExpertSlots::set_use(int32_t expert, const SlotUse& use) {
  experts_[expert].use = use;
  if (!is_absent(expert)) refresh(experts_[expert].slot);
}

int64_t ExpertSlots::resident_max(const SizeClass& size_class) const {
  const bool shares = is_shared_ && !size_class.holds_all();
  return size_class.slot_count - (shares ? size_class.guess_share() : 0);
}

int32_t ExpertSlots::take_idle(SizeClass& size_class) {
  const int32_t slot = size_class.take_free();
  return slot >= 0 ? slot : take_used(first_whole(size_class.discarded));
}

// Residents leave the share of guesses alone as long as there is something colder to evict.
int32_t ExpertSlots::take_for_resident(SizeClass& size_class, int32_t layer) {
  const bool has_share = size_class.count(SlotPurpose::resident) < resident_max(size_class);
  int32_t slot = has_share ? size_class.take_free() : -1;
  if (slot < 0) slot = take_used(size_class.first_unwanted(layer));
  if (slot < 0) slot = take_idle(size_class);
  return slot >= 0 ? slot : take_used(size_class.first_victim(layer));
}

// A buffer that is free before it costs a resident one.
int32_t ExpertSlots::take_for_passing(SizeClass& size_class, int32_t layer) {
  const int64_t slots_max = std::max(slots_min, size_class.passing_share());
  if (size_class.count(SlotPurpose::passing) >= slots_max) return -1;
  const int32_t slot = take_idle(size_class);
  return slot >= 0 ? slot : take_used(size_class.first_victim(layer));
}

int32_t ExpertSlots::take_for_guess(SizeClass& size_class) {
  if (!is_shared_) return -1;
  if (size_class.ahead_count() >= size_class.guess_share()) {
    return take_used(first_whole(size_class.discarded));
  }
  const int32_t slot = size_class.take_free();
  // Residents have more than their share: a wanted guess became one of them.
  return slot >= 0 ? slot : take_used(size_class.first_unwanted(-1));
}

int32_t ExpertSlots::take_for_warming(SizeClass& size_class) {
  const int64_t residents =
      size_class.count(SlotPurpose::resident) + size_class.count(SlotPurpose::warming);
  return residents < resident_max(size_class) ? size_class.take_free() : -1;
}

void ExpertSlots::begin_purpose(int32_t index, SlotPurpose purpose) {
  Slot& slot = slots_[index];
  SizeClass& size_class = classes_[slot.size_class];
  slot.purpose = purpose;
  size_class.count(purpose) += 1;
  if (purpose == SlotPurpose::resident) size_class.layer_held[experts_[slot.expert].layer] += 1;
  if (purpose == SlotPurpose::guessed) size_class.guessed.push_back(index);
  if (purpose == SlotPurpose::discarded) size_class.discarded.push_back(index);
}

void ExpertSlots::end_purpose(int32_t index) {
  const Slot& slot = slots_[index];
  SizeClass& size_class = classes_[slot.size_class];
  size_class.count(slot.purpose) -= 1;
  if (slot.purpose == SlotPurpose::resident)
    size_class.layer_held[experts_[slot.expert].layer] -= 1;
  std::erase(size_class.guessed, index);
  std::erase(size_class.discarded, index);
}

void ExpertSlots::set_purpose(int32_t slot, SlotPurpose purpose) {
  end_purpose(slot);
  begin_purpose(slot, purpose);
}

bool ExpertSlots::take(int32_t expert, SlotPurpose purpose) {
  CHECK(is_absent(expert));
  SizeClass& size_class = class_of(expert);
  const int32_t layer = experts_[expert].layer;
  const int32_t index = purpose == SlotPurpose::resident  ? take_for_resident(size_class, layer)
                        : purpose == SlotPurpose::passing ? take_for_passing(size_class, layer)
                        : purpose == SlotPurpose::guessed ? take_for_guess(size_class)
                                                          : take_for_warming(size_class);
  if (index < 0) return false;
  put(index, expert, purpose);
  return true;
}

void ExpertSlots::put(int32_t index, int32_t expert, SlotPurpose purpose) {
  Slot& slot = slots_[index];
  CHECK(slot.expert < 0);
  slot.expert = expert;
  slot.is_whole = false;
  if (!std::exchange(slot.is_held, true)) add_held_bytes(class_of(expert).bytes);
  experts_[expert].slot = index;
  begin_purpose(index, purpose);
}

// Beside guesses, as many as the floor are left, or a step could read nothing.
bool ExpertSlots::move(int32_t expert) {
  CHECK(is_loading(expert));
  SizeClass& size_class = class_of(expert);
  if (size_class.slot_count - size_class.ahead_count() <= slots_min) return false;
  const int32_t index = take_for_resident(size_class, experts_[expert].layer);
  if (index < 0) return false;
  const int32_t stranded = experts_[expert].slot;
  const SlotPurpose purpose = slots_[stranded].purpose;
  set_purpose(stranded, SlotPurpose::stranded);
  slots_[stranded].expert = -1;
  --size_class.slot_count;
  put(index, expert, purpose);
  return true;
}

void ExpertSlots::take_back(int32_t slot) {
  CHECK(slots_[slot].purpose == SlotPurpose::stranded);
  end_purpose(slot);
  SizeClass& size_class = classes_[slots_[slot].size_class];
  size_class.free.push_back(slot);
  ++size_class.slot_count;
}

void ExpertSlots::set_whole(int32_t expert) {
  CHECK(is_loading(expert));
  const int32_t slot = experts_[expert].slot;
  slots_[slot].is_whole = true;
  if (purpose(expert) == SlotPurpose::warming) set_purpose(slot, SlotPurpose::resident);
  if (purpose(expert) == SlotPurpose::cancelled) set_purpose(slot, SlotPurpose::discarded);
  refresh(slot);
}

void ExpertSlots::give_up(int32_t expert) {
  const int32_t slot = experts_[expert].slot;
  CHECK(slots_[slot].pins == 0);
  end_purpose(slot);
  slots_[slot].expert = -1;
  experts_[expert].slot = -1;
  class_of(expert).victims.remove(slot);
  class_of(expert).free.push_back(slot);
}

void ExpertSlots::want(int32_t expert, SlotPurpose purpose) {
  if (!is_ahead(slot_of(expert).purpose)) return;
  set_purpose(experts_[expert].slot, purpose);
  // A resident of its own layer makes room now that the step's wants are known; otherwise the next
  // read ahead would have to evict one blindly.
  const SizeClass& size_class = class_of(expert);
  if (size_class.count(SlotPurpose::resident) <= resident_max(size_class)) return;
  const int32_t victim = size_class.first_unwanted(experts_[expert].layer);
  if (victim >= 0) give_up(slots_[victim].expert);
}

int64_t ExpertSlots::dismiss_guesses(ExpertRange layer, std::vector<int32_t>& cancelled) {
  cancelled.clear();
  int64_t discarded_count = 0;
  const std::vector<int32_t>& guessed = class_of(layer.first).guessed;
  for (size_t i = 0; i < guessed.size();) {
    const int32_t slot = guessed[i], expert = slots_[slot].expert;
    const bool is_of_layer = expert >= layer.first && expert < layer.first + layer.count;
    if (!is_of_layer || use(expert).is_wanted) {
      ++i;
    } else if (slots_[slot].is_whole) {
      set_purpose(slot, SlotPurpose::discarded);
      ++discarded_count;
    } else {
      set_purpose(slot, SlotPurpose::cancelled);
      cancelled.push_back(expert);
    }
  }
  return discarded_count;
}

ExpertLease ExpertSlots::lease(int32_t expert, bool is_let_go) {
  const int32_t index = experts_[expert].slot;
  Slot& slot = slots_[index];
  slot.is_let_go = is_let_go;
  ++slot.pins;
  refresh(index);
  return ExpertLease(*this, index, slot.bytes);
}

void ExpertSlots::unpin(int32_t index) {
  Slot& slot = slots_[index];
  CHECK(slot.pins > 0);
  if (--slot.pins > 0) return;
  if (slot.is_let_go) {
    give_up(slot.expert);
  } else {
    refresh(index);
  }
}

int64_t ExpertSlots::stream_share(ExpertRange layer) const {
  const SizeClass& size_class = classes_[experts_[layer.first].size_class];
  if (size_class.holds_all()) return layer.count;
  const int64_t kept_slots = size_class.slot_count - size_class.passing_share();
  return std::max<int64_t>(1, kept_slots * layer.count / size_class.expert_count);
}

int64_t ExpertSlots::count(SlotPurpose purpose) const {
  int64_t count = 0;
  for (const SizeClass& one : classes_) count += one.count(purpose);
  return count;
}

int64_t ExpertSlots::resident_count() const {
  return std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.expert >= 0 && slot.is_whole && slot.purpose == SlotPurpose::resident;
  });
}

int64_t ExpertSlots::slot_count() const {
  int64_t count = 0;
  for (const SizeClass& one : classes_) count += one.slot_count;
  return count;
}

void ExpertSlots::publish_held_bytes(std::atomic<int64_t>& to) {
  published_held_bytes_ = &to;
  add_held_bytes(0);
}

void ExpertSlots::add_held_bytes(int64_t bytes) {
  held_bytes_ += bytes;
  if (published_held_bytes_ == nullptr) return;
  published_held_bytes_->store(held_bytes_, std::memory_order_relaxed);
}

}  // namespace glmd
