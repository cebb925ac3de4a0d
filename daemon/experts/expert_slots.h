// The memory of the experts: one arena, cut into slots of exactly the bytes of an expert, a class
// of slots for each size. Who has one and for what, and who makes room for the next: the coldest;
// what the running step wants goes last, leases pin. A few slots of each class are kept for reads
// ahead of the router, so that a wrong guess never costs a resident expert. Nothing is read here.
// Thread: compute. The reader's threads write only into slots that are loading.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "experts/eviction.h"
#include "platform/aligned_memory.h"
#include "platform/result.h"

namespace glmd {

// The experts of one layer: consecutive, alike in size.
struct ExpertRange {
  int32_t first = 0, count = 0;
};

class ExpertSlots;

// A pin: the expert's bytes stay where they are until it dies.
class ExpertLease {
 public:
  ExpertLease() = default;
  ExpertLease(ExpertLease&& other) noexcept { *this = std::move(other); }
  ExpertLease& operator=(ExpertLease&& other) noexcept;
  ~ExpertLease();

  const uint8_t* bytes() const { return bytes_; }

 private:
  friend class ExpertSlots;
  ExpertLease(ExpertSlots& slots, int32_t slot, const uint8_t* bytes)
      : slots_(&slots), slot_(slot), bytes_(bytes) {}
  ExpertSlots* slots_ = nullptr;
  int32_t slot_ = -1;
  const uint8_t* bytes_ = nullptr;
};

// What an expert has its slot for. Passing: until it is computed. Guessed: read ahead, the router
// has not spoken yet; when it wants another, cancelled while the read lasts and discarded when
// whole. Warming: resident when whole. Stranded: nobody's, until a disk that hangs lets go of it.
enum class SlotPurpose : uint8_t {
  resident,
  passing,
  stranded,
  guessed,
  cancelled,
  discarded,
  warming
};
constexpr size_t slot_purposes = 7;
constexpr bool is_ahead(SlotPurpose purpose) {
  return purpose >= SlotPurpose::guessed;
}

class ExpertSlots {
 public:
  // The least arena: two slots of each size (one expert computing, one in flight).
  static int64_t arena_bytes_min(std::span<const int64_t> expert_bytes);
  // Every size of expert gets the same share of its experts, within `arena_bytes`, and every layer
  // may hold the same part of that.
  static Result<ExpertSlots> create(std::span<const int64_t> expert_bytes, int64_t arena_bytes,
                                    int64_t experts_per_layer);
  // Gives the coldest slots' memory back, or takes it again, down to the floor and up to what
  // create() was given. Returns the bytes of all slots now; more than asked for while some load.
  int64_t resize(int64_t arena_bytes);

  // What decides who makes room.
  const SlotUse& use(int32_t expert) const { return experts_[expert].use; }
  void set_use(int32_t expert, const SlotUse& use);

  // Guesses have a share of each class; none without this call.
  void share_with_guesses(bool is_shared) { is_shared_ = is_shared; }
  // A slot for an absent expert, loading from now on: resident, passing, guessed or warming. False
  // where there is none for that.
  bool take(int32_t expert, SlotPurpose purpose);
  void set_whole(int32_t expert);  // its bytes have come
  void give_up(int32_t expert);    // its slot is free
  // Another slot for an expert that is loading, if one can be spared: that which it had is stranded
  // until take_back().
  bool move(int32_t expert);
  void take_back(int32_t slot);
  // Resident or passing from now on, if it was ahead.
  void want(int32_t expert, SlotPurpose purpose);
  // The layer's guesses that the step does not want: those that load are `cancelled` now, those
  // that are whole discarded. Returns how many were whole.
  int64_t dismiss_guesses(ExpertRange layer, std::vector<int32_t>& cancelled);
  // Of an expert that is whole. `is_let_go`: its slot is free when the last one ends.
  ExpertLease lease(int32_t expert, bool is_let_go);

  bool is_absent(int32_t expert) const { return experts_[expert].slot < 0; }
  bool is_whole(int32_t expert) const { return !is_absent(expert) && slot_of(expert).is_whole; }
  bool is_loading(int32_t expert) const { return !is_absent(expert) && !slot_of(expert).is_whole; }
  // Of an expert that has a slot.
  SlotPurpose purpose(int32_t expert) const { return slot_of(expert).purpose; }
  uint8_t* bytes(int32_t expert) const { return slot_of(expert).bytes; }
  int32_t slot(int32_t expert) const { return experts_[expert].slot; }  // -1: none

  int64_t stream_share(ExpertRange layer) const;  // experts of it that a stream keeps
  int64_t count(SlotPurpose purpose) const;
  int64_t resident_count() const;                     // that are whole
  int64_t slot_count() const;                         // that may take memory
  int64_t held_bytes() const { return held_bytes_; }  // of slots that took it: were read into
  // Keeps `to` equal to that, for other threads.
  void publish_held_bytes(std::atomic<int64_t>& to);

 private:
  friend class ExpertLease;
  struct Slot {
    uint8_t* bytes = nullptr;
    int32_t size_class = 0;
    int32_t expert = -1;
    int32_t pins = 0;
    SlotPurpose purpose = SlotPurpose::resident;
    bool is_whole = false;       // else its expert is loading
    bool is_let_go = false;      // free when the last pin goes
    bool is_held = false;        // has pages
    bool is_given_back = false;  // may have none
  };
  struct Expert {
    int32_t size_class = 0;
    int32_t layer = 0;  // of those of its class
    int32_t slot = -1;
    SlotUse use;
  };
  struct SizeClass {
    int64_t bytes = 0;  // of one slot
    int64_t expert_count = 0;
    int64_t slot_count = 0;                       // that have memory, but for stranded ones
    std::array<int64_t, slot_purposes> counts{};  // of slots
    std::vector<int64_t> layer_held;              // slots of each layer's residents
    VictimQueue victims{0, 0};                    // slots, as below
    std::vector<int32_t> free;
    std::vector<int32_t> guessed, discarded;  // oldest first

    int64_t& count(SlotPurpose purpose) { return counts[static_cast<size_t>(purpose)]; }
    int64_t count(SlotPurpose purpose) const { return counts[static_cast<size_t>(purpose)]; }
    int64_t ahead_count() const;
    bool holds_all() const { return slot_count == expert_count; }  // or will: no one need go
    int64_t guess_share() const;
    int64_t passing_share() const;
    int32_t take_free();  // -1: none, as of all these
    int32_t first_victim(int32_t layer) const;
    int32_t first_unwanted(int32_t layer) const;
  };

  const Slot& slot_of(int32_t expert) const { return slots_[experts_[expert].slot]; }
  SizeClass& class_of(int32_t expert) { return classes_[experts_[expert].size_class]; }
  void shrink(SizeClass& size_class, int64_t slot_count);
  void grow(int32_t size_class, int64_t slot_count);
  int64_t resident_max(const SizeClass& size_class) const;
  int32_t first_whole(std::span<const int32_t> slots) const;
  int32_t take_used(int32_t slot);
  int32_t take_spare(SizeClass& size_class);
  int32_t take_idle(SizeClass& size_class);
  int32_t take_for_resident(SizeClass& size_class, int32_t layer);
  int32_t take_for_passing(SizeClass& size_class, int32_t layer);
  int32_t take_for_guess(SizeClass& size_class);
  int32_t take_for_warming(SizeClass& size_class);
  void put(int32_t slot, int32_t expert, SlotPurpose purpose);
  void begin_purpose(int32_t slot, SlotPurpose purpose);
  void end_purpose(int32_t slot);
  void set_purpose(int32_t slot, SlotPurpose purpose);
  void refresh(int32_t slot);
  void unpin(int32_t slot);
  void add_held_bytes(int64_t bytes);

  std::vector<Expert> experts_;
  std::vector<Slot> slots_;
  std::vector<SizeClass> classes_;
  AlignedMemory arena_;
  bool is_shared_ = false;
  int64_t held_bytes_ = 0;
  std::atomic<int64_t>* published_held_bytes_ = nullptr;
};

}  // namespace glmd
