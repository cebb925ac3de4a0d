// Which experts are in memory: one arena, cut into slots of exactly the bytes of an expert, a class
// of slots for each size. Look-up is an index. A miss is read into a free slot or the coldest one;
// experts of the running step go last, leases pin. A few slots of each class are kept for reads
// ahead of the router, so that a wrong guess never costs a resident expert.
// Thread: compute. The reader's threads write only into slots that are loading.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experts/eviction.h"
#include "platform/aligned_memory.h"
#include "platform/clock.h"
#include "platform/result.h"
#include "storage/block_reader.h"

namespace glmd {

struct ExpertExtent {
  int32_t file = 0;  // index of the reader
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t hash = 0;      // XXH3-64
  std::string name;       // for messages: "expert 7"
  std::string file_name;  // likewise
};

// The experts of one layer: consecutive in the cache, alike in size.
struct ExpertRange {
  int32_t first = 0, count = 0;
};

// What a step asks of an expert. `uses` may count less than its rows: those far from the end of a
// prompt say less about what comes next.
struct ExpertWant {
  int32_t expert = 0;
  double uses = 0;
};

// Whose checksums are compared. `first_read` finds a container that was damaged before glmd read
// it, not what a disk or its path gets wrong later; `off` is for measurements.
enum class Verify { off, first_read, always };
std::optional<Verify> verify_from(std::string_view name);  // first, always

// A step of few rows keeps all it reads. A stream is a step of many rows that touches most experts
// of its layer: it keeps the layer's share of the slots, its hottest experts, and lets the others
// pass through a few buffers, so that later layers find what they left.
enum class Pace { step, stream };

class ExpertCache;

// A pin: the expert's bytes stay where they are until it dies.
class ExpertLease {
 public:
  ExpertLease() = default;
  ExpertLease(ExpertLease&& other) noexcept { *this = std::move(other); }
  ExpertLease& operator=(ExpertLease&& other) noexcept;
  ~ExpertLease();

  const uint8_t* bytes() const { return bytes_; }

 private:
  friend class ExpertCache;
  ExpertLease(ExpertCache& cache, int32_t slot, const uint8_t* bytes)
      : cache_(&cache), slot_(slot), bytes_(bytes) {}
  ExpertCache* cache_ = nullptr;
  int32_t slot_ = -1;
  const uint8_t* bytes_ = nullptr;
};

struct ExpertCacheStats {
  int64_t hits = 0, misses = 0;  // whole in memory, or not, when wanted
  int64_t read_bytes = 0;
  int64_t rereads = 0;  // of what came wrong or not at all the time before
  // Reads ahead of the router: begun; of them whole when wanted (a hit), still under way when
  // wanted (a miss that takes less time), read for nothing, cancelled in time.
  int64_t ahead_issued = 0, ahead_used = 0, ahead_late = 0, ahead_wasted = 0, ahead_dropped = 0;
  double wait_seconds = 0;  // the compute thread had nothing but reads to wait for
  double read_seconds = 0;  // at least one read was under way

  // Experts that had to be read, whoever began it: a used guess is a miss that came early.
  int64_t needed_reads() const { return misses + ahead_used; }
};

class ExpertCache {
 public:
  // The least arena: two slots of each size (one expert computing, one in flight).
  static int64_t arena_bytes_min(std::span<const ExpertExtent> experts);
  // Every size of expert gets the same share of its experts, within `arena_bytes`, and every layer
  // may hold the same part of that; 0 experts a layer: all are one. The reader outlives the cache
  // and serves nobody else.
  static Result<ExpertCache> create(std::vector<ExpertExtent> experts, int64_t arena_bytes,
                                    BlockReader& reader, Verify verify,
                                    int64_t experts_per_layer = 0);
  ~ExpertCache();  // waits for reads that are under way
  ExpertCache(ExpertCache&&) noexcept = default;
  ExpertCache& operator=(ExpertCache&&) = delete;

  // Between steps: gives the coldest slots' memory back, or takes it again, down to the floor and
  // up to what create() was given. Returns the bytes of all slots now; more than asked for while
  // reads are under way.
  int64_t resize(int64_t arena_bytes);

  // A pass of `tokens` begins: moves the clock of decay.
  void advance(int64_t tokens) { clock_tokens_ += tokens; }
  // A layer's router has spoken; no read of another step is awaited. What the step wants is
  // protected until the next one begins. Reads ahead that are under way become demand, and arrive
  // like what start_load() began, or are cancelled.
  void begin_step(ExpertRange layer, std::span<const ExpertWant> wants, Pace pace = Pace::step);

  // The expert's bytes if they are here.
  std::optional<ExpertLease> find(int32_t expert);
  // Starts the read of an absent expert; false where every slot is pinned or loading.
  bool start_load(int32_t expert);
  // The lease of a wanted expert that was loading; an error is of that expert only, named.
  struct Arrival {
    int32_t expert = -1;
    Result<ExpertLease> lease;
  };
  Arrival wait_for_arrival();
  std::optional<Arrival> poll_arrival();  // if there is one now
  int64_t loading_count() const { return loading_count_; }
  // Waits for all reads of the step and keeps what arrived whole.
  void drain();

  // Reads ahead: `share` of a class's slots at most is kept for them; none without this call.
  void allow_read_ahead(bool is_allowed);
  // Reads an absent expert while nobody waits for the disk; false where no slot is left for that.
  bool read_ahead(int32_t expert);
  bool is_absent(int32_t expert) const { return entries_[expert].slot < 0; }
  // Experts in this order lie one after the other on disk.
  bool is_stored_before(int32_t a, int32_t b) const;

  // Experts to read while nobody asks for any, in this order, into slots that are free anyway.
  void plan_warm_up(std::vector<int32_t> experts);
  // Between steps: waits for one of these reads, with the next ones under way. False where nothing
  // is left to read.
  bool warm_up();

  // A history of uses as a prior, worth `uses` uses just now.
  void seed_heat(int32_t expert, double uses);

  // What a second read put right, since the last call: a line for the log each. Readers of several
  // disks tell of theirs themselves.
  std::vector<std::string> take_events() { return std::exchange(events_, {}); }

  // After as many tokens a use counts half: chosen once, for the arena of create().
  double half_life_tokens() const { return half_life_tokens_; }
  ExpertCacheStats stats() const;  // asks the reader: not for every layer
  int64_t needed_reads() const { return stats_.needed_reads(); }
  int64_t slot_count() const;                         // that may take memory
  int64_t held_bytes() const { return held_bytes_; }  // of slots that took it: were read into
  // Keeps `to` equal to that, for other threads.
  void publish_held_bytes(std::atomic<int64_t>& to);
  int64_t resident_count() const;

 private:
  friend class ExpertLease;
  // What a slot is held for. Staged: read ahead, not wanted yet. Passing: free when computed.
  enum class Purpose : uint8_t { resident, staged, passing };
  enum class State : uint8_t { given_back, free, loading, whole };
  struct Slot {
    uint8_t* bytes = nullptr;
    int32_t size_class = 0;
    int32_t expert = -1;
    int32_t pins = 0;
    State state = State::free;
    Purpose purpose = Purpose::resident;
    bool is_let_go = false;     // free when the last pin goes
    bool is_cancelled = false;  // staged: no longer wanted, completion outstanding
    bool is_warming = false;    // staged: resident as soon as it is whole
    bool is_held = false;       // has pages
  };
  struct Entry {
    ExpertExtent extent;
    int32_t size_class = 0;
    int32_t layer = 0;  // of layer_held_
    int32_t slot = -1;
    double heat = -1e300;
    int64_t last_step = -1;     // that wanted it
    int64_t passing_step = -1;  // that lets it pass
    bool is_verified = false;
  };
  struct SizeClass {
    int64_t bytes = 0;  // of one slot
    int64_t expert_count = 0;
    int64_t slot_count = 0;                                           // that have memory
    int64_t resident_count = 0, staged_count = 0, passing_count = 0;  // slots by purpose
    int32_t first_layer = 0, layer_count = 0;                         // of layer_held_
    std::vector<int32_t> free;
    std::vector<int32_t> staged;    // the router has not spoken yet
    std::deque<int32_t> discarded;  // staged, whole, not wanted: oldest first

    bool holds_all() const { return slot_count == expert_count; }  // or will: no one need go
    int64_t staging_share() const;
    int64_t passing_share() const;
  };

  ExpertCache() = default;
  void number_layers(int64_t experts_per_layer);
  void add_to_counts(const Slot& slot, int64_t change);
  int32_t first_victim(const SizeClass& size_class, int32_t layer) const;
  SlotUse use_of(const Entry& entry) const;
  void refresh(int32_t slot);
  void begin_read(int32_t slot, int32_t expert, Purpose purpose);
  void set_purpose(int32_t slot, Purpose purpose);
  void add_held_bytes(int64_t bytes);
  void make_free(int32_t slot);
  void release(int32_t slot);
  ExpertLease pin(int32_t slot);
  void promote(int32_t expert);
  void settle_read_ahead(SizeClass& size_class, ExpertRange layer);
  void let_pass(const SizeClass& size_class, ExpertRange layer, std::span<const ExpertWant> wants);
  int32_t take_slot(SizeClass& size_class, int32_t layer, bool passes);
  int32_t take_free(SizeClass& size_class);
  int32_t take_discarded(SizeClass& size_class);
  int32_t take_staged(SizeClass& size_class);
  int32_t take_spare(SizeClass& size_class);
  int32_t take_victim(SizeClass& size_class, int32_t layer);
  void want_staged(int32_t slot, Purpose purpose);
  void submit(int32_t slot, ReadUrgency urgency);
  ReadCompletion wait_for_completion();
  std::optional<Arrival> complete(ReadCompletion completion);
  void note_repair(int32_t expert);
  void complete_staged(int32_t slot, const Result<void>& result);
  bool begin_warming();
  void end_warming(Slot& slot);
  int64_t resident_max(const SizeClass& size_class) const;
  bool wants_check(const Entry& entry, bool is_reread) const;
  void shrink(SizeClass& size_class, int64_t slot_count);
  void grow(int32_t size_class, int64_t slot_count);

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  std::vector<SizeClass> classes_;
  std::vector<int64_t> layer_held_;  // slots that a layer's residents hold; layers class by class
  VictimQueue victims_{0, 0};
  std::vector<int32_t> wanted_, wanted_before_;  // by the running step, and the last
  std::vector<int32_t> warm_up_;                 // the next one last
  std::vector<ExpertWant> by_heat_;              // scratch of let_pass
  AlignedMemory arena_;
  BlockReader* reader_ = nullptr;
  Verify verify_ = Verify::first_read;
  bool may_read_ahead_ = false;
  double half_life_tokens_ = 0;
  int64_t step_ = 0, clock_tokens_ = 0;
  int64_t loading_count_ = 0;  // demand
  int64_t warming_count_ = 0;
  int64_t held_bytes_ = 0;
  std::atomic<int64_t>* published_held_bytes_ = nullptr;
  SteadyClock clock_;
  ExpertCacheStats stats_;
  std::map<int32_t, Error> faults_;  // of experts whose last read failed: the next is a re-read
  std::vector<std::string> events_;
};

}  // namespace glmd
