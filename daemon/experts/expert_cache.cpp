#include "experts/expert_cache.h"

#include <algorithm>
#include <numeric>

#include "platform/check.h"

namespace glmd {
namespace {

constexpr int64_t warming_max = 2;  // one being checked, one being read
constexpr int64_t wait_slice_ms = 1'000;

std::vector<int64_t> bytes_of(std::span<const ExpertExtent> experts) {
  std::vector<int64_t> bytes;
  for (const ExpertExtent& expert : experts) bytes.push_back(expert.bytes);
  return bytes;
}

}  // namespace

std::optional<Verify> verify_from(std::string_view name) {
  if (name == "first") return Verify::first_read;
  if (name == "always") return Verify::always;
  return std::nullopt;
}

int64_t ExpertCache::arena_bytes_min(std::span<const ExpertExtent> experts) {
  return ExpertSlots::arena_bytes_min(bytes_of(experts));
}

Result<ExpertCache> ExpertCache::create(std::vector<ExpertExtent> experts, int64_t arena_bytes,
                                        BlockReader& reader, Verify verify,
                                        int64_t experts_per_layer, double half_life_tokens) {
  const std::vector<int64_t> bytes = bytes_of(experts);
  if (experts_per_layer == 0) experts_per_layer = std::ssize(experts);
  ExpertCache cache(TRY(ExpertSlots::create(bytes, arena_bytes, experts_per_layer)), reader,
                    verify);
  const int64_t expert_bytes = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  cache.half_life_tokens_ = half_life_tokens > 0
                                ? half_life_tokens
                                : half_life_tokens_for(static_cast<double>(arena_bytes) /
                                                       static_cast<double>(expert_bytes));
  cache.entries_.reserve(experts.size());
  for (ExpertExtent& expert : experts) cache.entries_.push_back({.extent = std::move(expert)});
  return cache;
}

ExpertCache::~ExpertCache() {
  int64_t left = slots_.count(SlotPurpose::stranded);
  for (int32_t expert = 0; expert < std::ssize(entries_); ++expert) {
    if (!slots_.is_loading(expert)) continue;
    reader_->cancel(tag_of(expert));
    ++left;
  }
  for (; left > 0; --left) reader_->wait();
}

int64_t ExpertCache::resize(int64_t arena_bytes) {
  const int64_t guesses = slots_.count(SlotPurpose::guessed);
  const int64_t bytes = slots_.resize(arena_bytes);
  stats_.ahead_wasted += guesses - slots_.count(SlotPurpose::guessed);
  return bytes;
}

void ExpertCache::begin_step(ExpertRange layer, std::span<const ExpertWant> wants, Pace pace) {
  CHECK(!poll_arrival());  // takes the reads ahead that are whole: they are hits
  ++step_;
  for (const int32_t expert : wanted_) {
    SlotUse use = slots_.use(expert);
    use.is_wanted = false;
    slots_.set_use(expert, use);
  }
  wanted_.clear();
  wanted_.reserve(static_cast<size_t>(layer.count));
  for (const ExpertWant& want : wants) {
    slots_.set_use(
        want.expert,
        {.heat = heat_after(want.expert, want.uses), .last_step = step_, .is_wanted = true});
    wanted_.push_back(want.expert);
  }
  if (wants.empty()) return;
  if (pace == Pace::stream) let_pass(layer, wants);
  stats_.ahead_wasted += slots_.dismiss_guesses(layer, cancelled_);
  for (const int32_t expert : cancelled_) reader_->cancel(tag_of(expert));
  for (const ExpertWant& want : wants) promote(want.expert);
}

// What the expert's uses count after `uses` more now.
double ExpertCache::heat_after(int32_t expert, double uses) const {
  return add_uses(slots_.use(expert).heat, uses, clock_tokens_, half_life_tokens_);
}

void ExpertCache::let_pass(ExpertRange layer, std::span<const ExpertWant> wants) {
  const int64_t share = slots_.stream_share(layer);
  if (static_cast<int64_t>(wants.size()) <= share) return;
  by_heat_.assign(wants.begin(), wants.end());
  std::nth_element(by_heat_.begin(), by_heat_.begin() + share, by_heat_.end(),
                   [&](const ExpertWant& a, const ExpertWant& b) {
                     return slots_.use(a.expert).heat > slots_.use(b.expert).heat;
                   });
  for (size_t i = static_cast<size_t>(share); i < by_heat_.size(); ++i) {
    entries_[by_heat_[i].expert].passing_step = step_;
  }
}

// A read ahead that is under way and wanted is demand from now on.
void ExpertCache::promote(int32_t expert) {
  if (!slots_.is_loading(expert)) return;
  const SlotPurpose was = slots_.purpose(expert);
  CHECK(is_ahead(was));
  slots_.want(expert, purpose_of(expert));
  // A cancelled one may still come whole; else it is begun again.
  if (was != SlotPurpose::cancelled) reader_->promote(tag_of(expert));
  if (was != SlotPurpose::warming) ++stats_.ahead_late;
  ++stats_.misses;
  ++loading_count_;
}

// In the running step, which wants it.
SlotPurpose ExpertCache::purpose_of(int32_t expert) const {
  return passes(expert) ? SlotPurpose::passing : SlotPurpose::resident;
}

std::optional<ExpertLease> ExpertCache::find(int32_t expert) {
  if (!slots_.is_whole(expert)) return std::nullopt;
  ++stats_.hits;
  if (slots_.purpose(expert) == SlotPurpose::guessed) ++stats_.ahead_used;  // discarded: wasted
  slots_.want(expert, purpose_of(expert));
  return slots_.lease(expert, passes(expert));
}

bool ExpertCache::start_load(int32_t expert) {
  if (!slots_.take(expert, purpose_of(expert))) return false;
  submit(expert, ReadUrgency::demand);
  ++loading_count_;
  ++stats_.misses;
  return true;
}

ExpertCache::Arrival ExpertCache::wait_for_arrival() {
  while (true) {
    CHECK(loading_count_ > 0);
    std::optional<Arrival> arrival = complete(wait_for_completion());
    if (arrival) return std::move(*arrival);
  }
}

std::optional<ExpertCache::Arrival> ExpertCache::poll_arrival() {
  while (std::optional<ReadCompletion> completion = reader_->poll()) {
    std::optional<Arrival> arrival = complete(std::move(*completion));
    if (arrival) return arrival;
  }
  return std::nullopt;
}

ReadCompletion ExpertCache::wait_for_completion() {
  const int64_t begin_ns = clock_.now_ns();
  std::optional<ReadCompletion> completion = reader_->wait_for(wait_slice_ms);
  const bool is_slow = !completion;
  while (!completion) {
    if (while_waiting_) while_waiting_();
    move_stranded();
    completion = reader_->wait_for(wait_slice_ms);
  }
  if (is_slow && while_waiting_) while_waiting_();
  stats_.wait_seconds += static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9;
  return std::move(*completion);
}

// What hangs on one disk is read from another, into another slot.
void ExpertCache::move_stranded() {
  for (const uint64_t tag : reader_->stranded()) {
    const auto expert = static_cast<int32_t>(tag & UINT32_MAX);
    if (slots_.is_absent(expert) || tag != tag_of(expert)) continue;  // moved before
    if (is_ahead(slots_.purpose(expert)) || !slots_.move(expert)) continue;
    reader_->cancel(tag);
    submit(expert, ReadUrgency::demand);
  }
}

// A read ended; the arrival, if the step waits for it.
std::optional<ExpertCache::Arrival> ExpertCache::complete(ReadCompletion completion) {
  const auto expert = static_cast<int32_t>(completion.tag & UINT32_MAX);
  const auto slot = static_cast<int32_t>(completion.tag >> 32);
  if (slot != slots_.slot(expert)) {  // it was moved
    slots_.take_back(slot);
    return std::nullopt;
  }
  CHECK(slots_.is_loading(expert));
  Entry& entry = entries_[expert];
  Result<void> result = std::move(completion.result);
  const bool was_cancelled = !result.ok() && result.error().kind == ErrorKind::cancelled;
  const bool was_reread = faults_.contains(expert);
  if (!was_cancelled) stats_.read_bytes += entry.extent.bytes;
  if (result.ok()) {
    entry.is_verified = verify_ != Verify::off;
    if (was_reread) note_repair(expert);
  } else if (!was_cancelled) {
    faults_.insert_or_assign(expert, result.error());
  }
  if (is_ahead(slots_.purpose(expert))) {
    complete_ahead(expert, result);
    return std::nullopt;
  }
  // Cancelled as a read ahead, before it was wanted after all; or else a flipped bit or a passing
  // fault, for which it is read once more.
  if (was_cancelled || (!result.ok() && !was_reread)) {
    submit(expert, ReadUrgency::demand);
    return std::nullopt;
  }
  --loading_count_;
  if (!result.ok()) {
    faults_.erase(expert);  // whoever wants it next has two tries again
    slots_.give_up(expert);
    return Arrival{expert, with_context(std::move(result).error(), entry.extent.name)};
  }
  slots_.set_whole(expert);
  return Arrival{expert, slots_.lease(expert, passes(expert))};
}

void ExpertCache::note_repair(int32_t expert) {
  const Error fault = std::move(faults_.extract(expert).mapped());
  if (!reader_->disks().empty()) return;
  events_.push_back(
      fmt::format("{}: {}; right when read again", entries_[expert].extent.name, fault.message));
}

// A fault of a read ahead is nobody's: the expert is read again if it is wanted.
void ExpertCache::complete_ahead(int32_t expert, const Result<void>& result) {
  const SlotPurpose purpose = slots_.purpose(expert);
  if (result.ok()) {
    slots_.set_whole(expert);
  } else {
    slots_.give_up(expert);
  }
  if (purpose == SlotPurpose::warming) return;
  if (purpose == SlotPurpose::guessed && result.ok()) return;
  const bool is_read = result.ok() || result.error().kind != ErrorKind::cancelled;
  ++(is_read ? stats_.ahead_wasted : stats_.ahead_dropped);
}

// The expert and where it is read to.
uint64_t ExpertCache::tag_of(int32_t expert) const {
  return static_cast<uint64_t>(slots_.slot(expert)) << 32 | static_cast<uint64_t>(expert);
}

void ExpertCache::submit(int32_t expert, ReadUrgency urgency) {
  const Entry& entry = entries_[expert];
  const ExpertExtent& extent = entry.extent;
  const bool is_reread = faults_.contains(expert);
  stats_.rereads += is_reread ? 1 : 0;
  std::optional<ReadChecksum> checksum;
  if (wants_check(entry, is_reread)) checksum = {extent.hash, extent.file_name};
  reader_->submit({.file = extent.file,
                   .offset = extent.offset,
                   .bytes = extent.bytes,
                   .target = slots_.bytes(expert),
                   .tag = tag_of(expert),
                   .urgency = urgency,
                   .is_reread = is_reread,
                   .checksum = checksum});
}

bool ExpertCache::wants_check(const Entry& entry, bool is_reread) const {
  if (verify_ == Verify::first_read) return is_reread || !entry.is_verified;
  return verify_ == Verify::always;
}

void ExpertCache::drain() {
  while (loading_count_ > 0) wait_for_arrival();
}

bool ExpertCache::read_ahead(int32_t expert) {
  if (!is_absent(expert) || !slots_.take(expert, SlotPurpose::guessed)) return false;
  ++stats_.ahead_issued;
  submit(expert, ReadUrgency::look_ahead);
  return true;
}

bool ExpertCache::is_stored_before(int32_t a, int32_t b) const {
  const ExpertExtent &left = entries_[a].extent, &right = entries_[b].extent;
  return left.file != right.file ? left.file < right.file : left.offset < right.offset;
}

void ExpertCache::plan_warm_up(std::vector<int32_t> experts) {
  warm_up_ = std::move(experts);
  std::reverse(warm_up_.begin(), warm_up_.end());
}

bool ExpertCache::warm_up() {
  CHECK(loading_count_ == 0);
  while (slots_.count(SlotPurpose::warming) < warming_max && begin_warming()) {
  }
  if (reader_->outstanding() == 0) return false;
  std::optional<ReadCompletion> completion = reader_->wait_for(wait_slice_ms);
  if (completion) complete(std::move(*completion));
  return true;
}

bool ExpertCache::begin_warming() {
  while (!warm_up_.empty()) {
    const int32_t expert = warm_up_.back();
    warm_up_.pop_back();
    if (!is_absent(expert) || !slots_.take(expert, SlotPurpose::warming)) continue;
    submit(expert, ReadUrgency::look_ahead);
    return true;
  }
  return false;
}

void ExpertCache::seed_heat(int32_t expert, double uses) {
  SlotUse use = slots_.use(expert);
  use.heat = heat_after(expert, uses);
  slots_.set_use(expert, use);
}

ExpertCacheStats ExpertCache::stats() const {
  ExpertCacheStats stats = stats_;
  stats.read_seconds = static_cast<double>(reader_->counters().busy_ns) * 1e-9;
  return stats;
}

}  // namespace glmd
