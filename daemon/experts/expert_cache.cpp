#include "experts/expert_cache.h"

#include <algorithm>
#include <map>

#include "storage/manifest.h"

namespace glmd {
namespace {

std::map<int64_t, int64_t> count_by_size(std::span<const ExpertExtent> experts) {
  std::map<int64_t, int64_t> counts;
  for (const ExpertExtent& expert : experts) ++counts[expert.bytes];
  return counts;
}

constexpr int64_t slots_min = 2;

}  // namespace

ExpertLease& ExpertLease::operator=(ExpertLease&& other) noexcept {
  std::swap(cache_, other.cache_);
  std::swap(slot_, other.slot_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ExpertLease::~ExpertLease() {
  if (cache_ != nullptr) cache_->release(slot_);
}

int64_t ExpertCache::arena_bytes_min(std::span<const ExpertExtent> experts) {
  int64_t bytes = 0;
  for (const auto& [size, count] : count_by_size(experts))
    bytes += size * std::min(count, slots_min);
  return bytes;
}

Result<ExpertCache> ExpertCache::create(std::vector<ExpertExtent> experts, int64_t arena_bytes,
                                        BlockReader& reader, Verify verify) {
  const int64_t floor_bytes = arena_bytes_min(experts);
  if (arena_bytes < floor_bytes) {
    return error(ErrorKind::no_memory, "expert arena: wanted at least {} bytes, got {}",
                 floor_bytes, arena_bytes);
  }
  ExpertCache cache;
  cache.reader_ = &reader;
  cache.verify_ = verify;

  std::map<int64_t, int64_t> slots_by_size;
  std::vector<std::pair<int64_t, int64_t>> by_count;  // (experts, size), most first
  int64_t left_bytes = arena_bytes - floor_bytes;
  int64_t used_bytes = floor_bytes;
  for (const auto& [size, count] : count_by_size(experts)) {
    slots_by_size[size] = std::min(count, slots_min);
    by_count.emplace_back(count, size);
  }
  std::sort(by_count.rbegin(), by_count.rend());
  for (const auto& [count, size] : by_count) {
    const int64_t more = std::min(count - slots_by_size[size], left_bytes / size);
    slots_by_size[size] += more;
    left_bytes -= more * size;
    used_bytes += more * size;
  }

  cache.arena_ = TRY(AlignedMemory::allocate(used_bytes));
  uint8_t* next = cache.arena_.data();
  for (const auto& [size, count] : slots_by_size) {
    for (int64_t i = 0; i < count; ++i, next += size) {
      cache.slots_.push_back({.bytes = next, .size_bytes = size});
    }
  }
  cache.uses_.resize(cache.slots_.size());
  cache.entries_.reserve(experts.size());
  for (ExpertExtent& expert : experts) cache.entries_.push_back({.extent = std::move(expert)});
  return cache;
}

void ExpertCache::begin_step(int64_t tokens) {
  ++step_;
  clock_tokens_ += tokens;
}

void ExpertCache::want(int32_t expert, int64_t rows) {
  Entry& entry = entries_[expert];
  entry.heat = add_uses(entry.heat, rows, clock_tokens_);
  entry.last_step = step_;
  entry.wanted_step = step_;
}

std::optional<ExpertLease> ExpertCache::find(int32_t expert) {
  const int32_t slot = entries_[expert].slot;
  if (slot < 0 || slots_[slot].is_loading) return std::nullopt;
  ++stats_.hits;
  return pin(slot);
}

bool ExpertCache::start_load(int32_t expert) {
  Entry& entry = entries_[expert];
  CHECK(entry.slot < 0);
  const int32_t index = take_slot(entry.extent.bytes);
  if (index < 0) return false;
  Slot& slot = slots_[index];
  if (slot.expert >= 0) entries_[slot.expert].slot = -1;
  slot.expert = expert;
  slot.is_loading = true;
  slot.was_reread = false;
  entry.slot = index;
  ++loading_count_;
  ++stats_.misses;
  submit(index);
  return true;
}

void ExpertCache::submit(int32_t index) {
  const Slot& slot = slots_[index];
  const ExpertExtent& extent = entries_[slot.expert].extent;
  stats_.read_bytes += extent.bytes;
  reader_->submit({.file = extent.file,
                   .offset = extent.offset,
                   .bytes = extent.bytes,
                   .target = slot.bytes,
                   .tag = static_cast<uint64_t>(index),
                   .is_reread = slot.was_reread});
}

// A free slot of that size, else the coldest one that the running step does not want; where the
// step wants them all (its experts run in waves), the coldest of those already computed.
int32_t ExpertCache::take_slot(int64_t bytes) {
  for (const bool may_take_wanted : {false, true}) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      uses_[i] = {};
      if (slot.size_bytes != bytes || slot.is_loading || slot.pins > 0) continue;
      if (slot.expert < 0) return static_cast<int32_t>(i);
      const Entry& entry = entries_[slot.expert];
      uses_[i] = {.heat = entry.heat,
                  .last_step = entry.last_step,
                  .is_evictable = may_take_wanted || entry.wanted_step != step_};
    }
    const int32_t victim = choose_victim(uses_);
    if (victim >= 0) return victim;
  }
  return -1;
}

ExpertCache::Arrival ExpertCache::wait_for_arrival() {
  CHECK(loading_count_ > 0);
  while (true) {
    ReadCompletion completion = reader_->wait();
    const auto index = static_cast<int32_t>(completion.tag);
    Slot& slot = slots_[index];
    CHECK(slot.is_loading);
    const int32_t expert = slot.expert;
    Result<void> result = std::move(completion.result);
    if (result.ok()) result = check(slot);
    if (!result.ok() && !slot.was_reread) {  // a flipped bit or a passing fault: once more
      slot.was_reread = true;
      ++stats_.rereads;
      submit(index);
      continue;
    }
    slot.is_loading = false;
    --loading_count_;
    if (!result.ok()) {
      slot.expert = -1;
      entries_[expert].slot = -1;
      return {expert, with_context(std::move(result).error(), entries_[expert].extent.name)};
    }
    return {expert, pin(index)};
  }
}

Result<void> ExpertCache::check(Slot& slot) {
  Entry& entry = entries_[slot.expert];
  if (verify_ == Verify::off || (verify_ == Verify::first_read && entry.is_verified)) return {};
  const uint64_t hash = hash_bytes({slot.bytes, static_cast<size_t>(slot.size_bytes)});
  if (hash != entry.extent.hash) {
    return error(ErrorKind::corrupt, "checksum of {} bytes at {}: wanted {:016x}, got {:016x}",
                 entry.extent.bytes, entry.extent.offset, entry.extent.hash, hash);
  }
  entry.is_verified = true;
  return {};
}

void ExpertCache::drain() {
  while (loading_count_ > 0) wait_for_arrival();
}

ExpertLease ExpertCache::pin(int32_t slot) {
  ++slots_[slot].pins;
  return ExpertLease(*this, slot, slots_[slot].bytes);
}

void ExpertCache::release(int32_t slot) {
  CHECK(slots_[slot].pins > 0);
  --slots_[slot].pins;
}

int64_t ExpertCache::resident_count() const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.expert >= 0 && !slot.is_loading; });
}

}  // namespace glmd
