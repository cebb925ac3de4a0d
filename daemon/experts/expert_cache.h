// Which experts are in memory. One arena of slots per expert size; look-up is an index; a miss is
// read into a free slot or the coldest one. Experts of the running step are never victims, leases
// pin. Thread: compute. The reader's threads write only into slots that are loading.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "experts/eviction.h"
#include "platform/aligned_memory.h"
#include "platform/result.h"
#include "storage/block_reader.h"

namespace glmd {

struct ExpertExtent {
  int32_t file = 0;  // index of the reader
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t hash = 0;  // XXH3-64
  std::string name;   // for messages
};

enum class Verify { off, first_read, always };

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
  int64_t hits = 0, misses = 0, read_bytes = 0, rereads = 0;
};

class ExpertCache {
 public:
  // The least arena: two slots of each size (one expert computing, one in flight).
  static int64_t arena_bytes_min(std::span<const ExpertExtent> experts);
  // `arena_bytes` is split: sizes of which few experts exist get no more slots than experts. The
  // largest group of experts gets the rest.
  static Result<ExpertCache> create(std::vector<ExpertExtent> experts, int64_t arena_bytes,
                                    BlockReader& reader, Verify verify);

  // A step begins: its experts are protected until the next one. `tokens` move the clock of decay.
  void begin_step(int64_t tokens);
  // The step wants this expert for `rows` rows.
  void want(int32_t expert, int64_t rows);

  // The expert's bytes if they are here.
  std::optional<ExpertLease> find(int32_t expert);
  // Starts the read of an absent expert; false where every slot is pinned or loading.
  bool start_load(int32_t expert);
  // Waits for the next read to end. The lease of that expert; an error is of that expert only,
  // named.
  struct Arrival {
    int32_t expert = -1;
    Result<ExpertLease> lease;
  };
  Arrival wait_for_arrival();
  int64_t loading_count() const { return loading_count_; }
  // Waits for all reads and keeps what arrived whole.
  void drain();

  const ExpertCacheStats& stats() const { return stats_; }
  int64_t slot_count() const { return static_cast<int64_t>(slots_.size()); }
  int64_t resident_count() const;

 private:
  friend class ExpertLease;
  struct Slot {
    uint8_t* bytes = nullptr;
    int64_t size_bytes = 0;
    int32_t expert = -1;
    int32_t pins = 0;
    bool is_loading = false;
    bool was_reread = false;
  };
  struct Entry {
    ExpertExtent extent;
    double heat = -1e300;
    int64_t last_step = -1;
    int64_t wanted_step = -1;
    int32_t slot = -1;
    bool is_verified = false;
  };

  void release(int32_t slot);
  int32_t take_slot(int64_t bytes);
  void submit(int32_t slot);
  ExpertLease pin(int32_t slot);
  Result<void> check(Slot& slot);

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  std::vector<SlotUse> uses_;  // scratch of take_slot
  AlignedMemory arena_;
  BlockReader* reader_ = nullptr;
  Verify verify_ = Verify::first_read;
  int64_t step_ = 0, clock_tokens_ = 0;
  int64_t loading_count_ = 0;
  ExpertCacheStats stats_;
};

}  // namespace glmd
