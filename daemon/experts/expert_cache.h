// Experts for the steps of a model: begin_step() says what a layer wants, find() has what is in
// memory, start_load() reads the rest, and each arrives when it is whole. Beside that, reads ahead
// of the router, and of experts that nobody asked for yet. Where the bytes lie and who makes room
// for them is ExpertSlots'. Thread: compute.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experts/expert_slots.h"
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
constexpr int64_t stream_rows_min = 32;  // they touch most experts of a layer
constexpr Pace pace_of(int64_t rows) {
  return rows >= stream_rows_min ? Pace::stream : Pace::step;
}

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
  // See ExpertSlots; 0 experts a layer: all are one. A half-life of 0 is that for an arena of this
  // share. The reader outlives the cache and serves nobody else.
  static Result<ExpertCache> create(std::vector<ExpertExtent> experts, int64_t arena_bytes,
                                    BlockReader& reader, Verify verify,
                                    int64_t experts_per_layer = 0, double half_life_tokens = 0);
  ~ExpertCache();  // waits for reads that are under way
  ExpertCache(ExpertCache&&) noexcept = default;
  ExpertCache& operator=(ExpertCache&&) = delete;

  // Between steps; see ExpertSlots.
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

  // Reads ahead have a share of the slots; none without this call.
  void allow_read_ahead(bool is_allowed) { slots_.share_with_guesses(is_allowed); }
  // Reads an absent expert while nobody waits for the disk; false where no slot is left for that.
  bool read_ahead(int32_t expert);
  bool is_absent(int32_t expert) const { return slots_.is_absent(expert); }
  // Experts in this order lie one after the other on disk.
  bool is_stored_before(int32_t a, int32_t b) const;

  // Experts to read while nobody asks for any, in this order, into slots that are free anyway.
  void plan_warm_up(std::vector<int32_t> experts);
  // Between steps: waits for one of these reads, or for a guess that is under way, for a second at
  // most, with the next ones under way. False where nothing is left to read.
  bool warm_up();

  // To be called once a second while the compute thread has nothing but reads to wait for, and when
  // such a wait ends.
  void set_while_waiting(std::function<void()> call) { while_waiting_ = std::move(call); }

  // A history of uses as a prior, worth `uses` uses just now.
  void seed_heat(int32_t expert, double uses);

  // What a second read put right, since the last call: a line for the log each. Readers of several
  // disks tell of theirs themselves.
  std::vector<std::string> take_events() { return std::exchange(events_, {}); }

  // After as many tokens a use counts half: chosen once, for the arena of create().
  double half_life_tokens() const { return half_life_tokens_; }
  ExpertCacheStats stats() const;  // asks the reader: not for every layer
  int64_t needed_reads() const { return stats_.needed_reads(); }
  // See ExpertSlots.
  int64_t slot_count() const { return slots_.slot_count(); }
  int64_t held_bytes() const { return slots_.held_bytes(); }
  void publish_held_bytes(std::atomic<int64_t>& to) { slots_.publish_held_bytes(to); }
  int64_t resident_count() const { return slots_.resident_count(); }

 private:
  struct Entry {
    ExpertExtent extent;
    int64_t passing_step = -1;  // that lets it pass
    bool is_verified = false;
  };

  ExpertCache(ExpertSlots slots, BlockReader& reader, Verify verify)
      : slots_(std::move(slots)), reader_(&reader), verify_(verify) {}
  double heat_after(int32_t expert, double uses) const;
  void let_pass(ExpertRange layer, std::span<const ExpertWant> wants);
  void promote(int32_t expert);
  bool passes(int32_t expert) const { return entries_[expert].passing_step == step_; }
  SlotPurpose purpose_of(int32_t expert) const;
  uint64_t tag_of(int32_t expert) const;
  void submit(int32_t expert, ReadUrgency urgency);
  bool wants_check(const Entry& entry, bool is_reread) const;
  ReadCompletion wait_for_completion();
  void move_stranded();
  std::optional<Arrival> complete(ReadCompletion completion);
  void complete_ahead(int32_t expert, const Result<void>& result);
  void note_repair(int32_t expert);
  bool begin_warming();

  ExpertSlots slots_;
  std::vector<Entry> entries_;
  std::vector<int32_t> wanted_;      // by the running step
  std::vector<int32_t> warm_up_;     // the next one last
  std::vector<ExpertWant> by_heat_;  // scratch of let_pass
  std::vector<int32_t> cancelled_;   // scratch of begin_step
  BlockReader* reader_ = nullptr;
  Verify verify_ = Verify::first_read;
  double half_life_tokens_ = 0;
  int64_t step_ = 0, clock_tokens_ = 0;
  int64_t loading_count_ = 0;  // demand
  SteadyClock clock_;
  std::function<void()> while_waiting_;
  ExpertCacheStats stats_;
  std::map<int32_t, Error> faults_;  // of experts whose last read failed: the next is a re-read
  std::vector<std::string> events_;
};

}  // namespace glmd
