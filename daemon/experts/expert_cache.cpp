#include "experts/expert_cache.h"

#include <algorithm>
#include <map>

namespace glmd {
namespace {

constexpr int64_t slots_min = 2;
// Of a class's slots: as few as look-ahead fills while a layer computes; residents miss the others.
constexpr int64_t staged_min = 2, staged_max = 16;
constexpr int64_t slots_per_staged = 32;
// Buffers of a stream: as many as a reader has under way.
constexpr int64_t passing_max = 16;
constexpr int64_t slots_per_passing = 8;
constexpr int64_t warming_max = 2;  // one being checked, one being read

struct ClassSize {
  int64_t bytes = 0, expert_count = 0, slot_count = 0;
};

// Classes of experts by size with their floor of slots.
std::vector<ClassSize> classes_of(std::span<const ExpertExtent> experts) {
  std::map<int64_t, int64_t> counts;
  for (const ExpertExtent& expert : experts) ++counts[expert.bytes];
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

std::optional<Verify> verify_from(std::string_view name) {
  if (name == "first") return Verify::first_read;
  if (name == "always") return Verify::always;
  return std::nullopt;
}

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
  return slot_bytes(classes_of(experts));
}

Result<ExpertCache> ExpertCache::create(std::vector<ExpertExtent> experts, int64_t arena_bytes,
                                        BlockReader& reader, Verify verify,
                                        int64_t experts_per_layer) {
  std::vector<ClassSize> sizes = classes_of(experts);
  if (arena_bytes < slot_bytes(sizes)) {
    return error(ErrorKind::no_memory, "expert arena: wanted at least {} bytes, got {}",
                 slot_bytes(sizes), arena_bytes);
  }
  share_out(sizes, arena_bytes);

  int64_t expert_bytes = 0;
  for (const ExpertExtent& expert : experts) expert_bytes += expert.bytes;

  ExpertCache cache;
  cache.reader_ = &reader;
  cache.half_life_tokens_ =
      half_life_tokens_for(static_cast<double>(arena_bytes) / static_cast<double>(expert_bytes));
  cache.verify_ = verify;
  cache.arena_ = TRY(AlignedMemory::allocate(slot_bytes(sizes)));
  uint8_t* next = cache.arena_.data();
  std::map<int64_t, int32_t> class_of;
  int64_t slot_count = 0;
  for (const ClassSize& size : sizes) slot_count += size.slot_count;
  for (const ClassSize& size : sizes) {
    const auto index = static_cast<int32_t>(cache.classes_.size());
    class_of[size.bytes] = index;
    cache.classes_.push_back({.bytes = size.bytes,
                              .expert_count = size.expert_count,
                              .slot_count = size.slot_count,
                              .free = {},
                              .staged = {},
                              .discarded = {}});
    for (int64_t i = 0; i < size.slot_count; ++i, next += size.bytes) {
      cache.slots_.push_back({.bytes = next, .size_class = index});
    }
  }
  for (auto slot = static_cast<int32_t>(slot_count - 1); slot >= 0; --slot) {
    cache.classes_[cache.slots_[slot].size_class].free.push_back(slot);  // the first on top
  }
  cache.entries_.reserve(experts.size());
  for (ExpertExtent& expert : experts) {
    const int32_t size_class = class_of[expert.bytes];
    cache.entries_.push_back({.extent = std::move(expert), .size_class = size_class});
  }
  cache.number_layers(experts_per_layer > 0 ? experts_per_layer : std::ssize(experts));
  return cache;
}

// Layers of one class follow each other, so that their counts are one span.
void ExpertCache::number_layers(int64_t experts_per_layer) {
  std::map<std::pair<int32_t, int64_t>, int32_t> numbers;
  const auto key = [&](size_t expert) {
    return std::pair(entries_[expert].size_class, static_cast<int64_t>(expert) / experts_per_layer);
  };
  for (size_t expert = 0; expert < entries_.size(); ++expert) numbers[key(expert)] = 0;
  int32_t next = 0;
  for (auto& [place, number] : numbers) {
    SizeClass& size_class = classes_[place.first];
    if (size_class.layer_count++ == 0) size_class.first_layer = next;
    number = next++;
  }
  for (size_t expert = 0; expert < entries_.size(); ++expert) {
    entries_[expert].layer = numbers[key(expert)];
  }
  layer_held_.assign(static_cast<size_t>(next), 0);
  victims_ = VictimQueue(std::ssize(slots_), next);
}

ExpertCache::~ExpertCache() {
  const auto is_loading = [](const Slot& slot) { return slot.state == State::loading; };
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (is_loading(slots_[slot])) reader_->cancel(slot);
  }
  for (auto left = std::count_if(slots_.begin(), slots_.end(), is_loading); left > 0; --left) {
    reader_->wait();
  }
}

int64_t ExpertCache::resize(int64_t arena_bytes) {
  std::vector<ClassSize> sizes;
  for (const SizeClass& one : classes_) {
    sizes.push_back({.bytes = one.bytes,
                     .expert_count = one.expert_count,
                     .slot_count = std::min(one.expert_count, slots_min)});
  }
  share_out(sizes, std::min(arena_bytes, arena_.size_bytes()));
  int64_t bytes = 0;
  for (size_t i = 0; i < classes_.size(); ++i) {
    shrink(classes_[i], sizes[i].slot_count);
    grow(static_cast<int32_t>(i), sizes[i].slot_count);
    bytes += classes_[i].slot_count * classes_[i].bytes;
  }
  return bytes;
}

// Guesses keep their slots until their layer is asked: as many as the floor are left beside them,
// or other layers could read nothing.
int32_t ExpertCache::take_spare(SizeClass& size_class) {
  const bool has_spare = size_class.slot_count - size_class.staged_count > slots_min;
  int32_t slot = has_spare ? take_free(size_class) : -1;
  if (slot < 0) slot = take_discarded(size_class);
  if (slot < 0 && has_spare) slot = take_victim(size_class, -1);
  return slot >= 0 ? slot : take_staged(size_class);
}

void ExpertCache::shrink(SizeClass& size_class, int64_t slot_count) {
  while (size_class.slot_count > slot_count) {
    const int32_t slot = take_spare(size_class);
    if (slot < 0) return;
    slots_[slot].state = State::given_back;
    if (std::exchange(slots_[slot].is_held, false)) add_held_bytes(-size_class.bytes);
    arena_.give_back({slots_[slot].bytes, static_cast<size_t>(size_class.bytes)});
    --size_class.slot_count;
  }
}

void ExpertCache::grow(int32_t size_class, int64_t slot_count) {
  SizeClass& one = classes_[size_class];
  for (size_t slot = 0; slot < slots_.size() && one.slot_count < slot_count; ++slot) {
    if (slots_[slot].size_class != size_class) continue;
    if (slots_[slot].state != State::given_back) continue;
    slots_[slot].state = State::free;
    one.free.push_back(static_cast<int32_t>(slot));
    ++one.slot_count;
  }
}

void ExpertCache::begin_step(ExpertRange layer, std::span<const ExpertWant> wants, Pace pace) {
  CHECK(!poll_arrival());  // takes the reads ahead that are whole: they are hits
  ++step_;
  std::swap(wanted_, wanted_before_);
  wanted_.clear();
  wanted_.reserve(static_cast<size_t>(layer.count));
  for (const ExpertWant& want : wants) {
    Entry& entry = entries_[want.expert];
    entry.heat = add_uses(entry.heat, want.uses, clock_tokens_, half_life_tokens_);
    entry.last_step = step_;
    wanted_.push_back(want.expert);
  }
  for (const std::vector<int32_t>* experts : {&wanted_before_, &wanted_}) {
    for (const int32_t expert : *experts) refresh(entries_[expert].slot);
  }
  if (wants.empty()) return;
  SizeClass& size_class = classes_[entries_[wants[0].expert].size_class];
  if (pace == Pace::stream) let_pass(size_class, layer, wants);
  settle_read_ahead(size_class, layer);
  for (const ExpertWant& want : wants) promote(want.expert);
}

// A read ahead that is under way and wanted is demand from now on.
void ExpertCache::promote(int32_t expert) {
  const Entry& entry = entries_[expert];
  if (entry.slot < 0 || slots_[entry.slot].state != State::loading) return;
  Slot& slot = slots_[entry.slot];
  CHECK(slot.purpose == Purpose::staged);
  slot.is_let_go = entry.passing_step == step_;
  want_staged(entry.slot, slot.is_let_go ? Purpose::passing : Purpose::resident);
  // A cancelled one may still come whole; else it is begun again.
  if (!slot.is_cancelled) reader_->promote(static_cast<uint64_t>(entry.slot));
  slot.is_cancelled = false;
  if (slot.is_warming) {
    end_warming(slot);
  } else {
    ++stats_.ahead_late;
  }
  ++stats_.misses;
  ++loading_count_;
}

// What the layer was thought to want and does not.
void ExpertCache::settle_read_ahead(SizeClass& size_class, ExpertRange layer) {
  std::erase_if(size_class.staged, [&](int32_t index) {
    Slot& slot = slots_[index];
    const bool is_settled = slot.expert >= layer.first && slot.expert < layer.first + layer.count &&
                            entries_[slot.expert].last_step != step_;
    if (!is_settled) return false;
    if (slot.state == State::loading) {
      slot.is_cancelled = true;
      reader_->cancel(static_cast<uint64_t>(index));
    } else {
      ++stats_.ahead_wasted;
      size_class.discarded.push_back(index);
    }
    return true;
  });
}

void ExpertCache::let_pass(const SizeClass& size_class, ExpertRange layer,
                           std::span<const ExpertWant> wants) {
  if (size_class.holds_all()) return;
  const int64_t kept_slots = size_class.slot_count - size_class.passing_share();
  const int64_t share = std::max<int64_t>(1, kept_slots * layer.count / size_class.expert_count);
  if (static_cast<int64_t>(wants.size()) <= share) return;
  by_heat_.assign(wants.begin(), wants.end());
  std::nth_element(by_heat_.begin(), by_heat_.begin() + share, by_heat_.end(),
                   [&](const ExpertWant& a, const ExpertWant& b) {
                     return entries_[a.expert].heat > entries_[b.expert].heat;
                   });
  for (size_t i = static_cast<size_t>(share); i < by_heat_.size(); ++i) {
    entries_[by_heat_[i].expert].passing_step = step_;
  }
}

std::optional<ExpertLease> ExpertCache::find(int32_t expert) {
  const Entry& entry = entries_[expert];
  if (entry.slot < 0) return std::nullopt;
  Slot& slot = slots_[entry.slot];
  if (slot.state != State::whole) return std::nullopt;
  ++stats_.hits;
  const bool passes = entry.passing_step == step_;
  if (slot.purpose == Purpose::staged) {
    const std::deque<int32_t>& discarded = classes_[slot.size_class].discarded;
    const bool was_discarded =
        std::find(discarded.begin(), discarded.end(), entry.slot) != discarded.end();
    if (!was_discarded) ++stats_.ahead_used;  // else it counts as wasted
    want_staged(entry.slot, passes ? Purpose::passing : Purpose::resident);
  }
  slot.is_let_go = passes;
  return pin(entry.slot);
}

bool ExpertCache::start_load(int32_t expert) {
  const Entry& entry = entries_[expert];
  CHECK(entry.slot < 0);
  const bool passes = entry.passing_step == step_;
  const int32_t index = take_slot(classes_[entry.size_class], entry.layer, passes);
  if (index < 0) return false;
  begin_read(index, expert, passes ? Purpose::passing : Purpose::resident);
  slots_[index].is_let_go = passes;
  submit(index, ReadUrgency::demand);
  ++loading_count_;
  ++stats_.misses;
  return true;
}

// A staged expert is wanted: its slot is like any other from now on.
void ExpertCache::want_staged(int32_t index, Purpose purpose) {
  SizeClass& size_class = classes_[slots_[index].size_class];
  std::erase(size_class.staged, index);
  std::erase(size_class.discarded, index);
  set_purpose(index, purpose);
  // A resident of its own layer makes room now that the step's wants are known; otherwise the next
  // read ahead would have to evict one blindly.
  if (size_class.resident_count <= resident_max(size_class)) return;
  const int32_t victim = first_victim(size_class, entries_[slots_[index].expert].layer);
  if (victim >= 0 && !victims_.use(victim).is_wanted) make_free(victim);
}

bool ExpertCache::read_ahead(int32_t expert) {
  const Entry& entry = entries_[expert];
  SizeClass& size_class = classes_[entry.size_class];
  if (!may_read_ahead_ || entry.slot >= 0) return false;
  int32_t index = -1;
  if (size_class.staged_count < size_class.staging_share()) {
    index = take_free(size_class);
    if (index < 0) {
      // Residents have more than their share: a wanted staged expert became one of them.
      const int32_t victim = first_victim(size_class, -1);
      if (victim >= 0 && !victims_.use(victim).is_wanted) index = take_victim(size_class, -1);
    }
  } else {
    index = take_discarded(size_class);
  }
  if (index < 0) return false;
  begin_read(index, expert, Purpose::staged);
  size_class.staged.push_back(index);
  ++stats_.ahead_issued;
  submit(index, ReadUrgency::look_ahead);
  return true;
}

void ExpertCache::allow_read_ahead(bool is_allowed) {
  may_read_ahead_ = is_allowed;
}

bool ExpertCache::is_stored_before(int32_t a, int32_t b) const {
  const ExpertExtent &left = entries_[a].extent, &right = entries_[b].extent;
  return left.file != right.file ? left.file < right.file : left.offset < right.offset;
}

int64_t ExpertCache::SizeClass::staging_share() const {
  const int64_t least = std::min(staged_min, slot_count / slots_per_passing);
  return std::clamp(slot_count / slots_per_staged, least, staged_max);
}

int64_t ExpertCache::SizeClass::passing_share() const {
  return std::min(passing_max, slot_count / slots_per_passing);
}

// Residents leave the share of reads ahead alone as long as there is something colder to evict. A
// passing expert takes a buffer that is free before it costs a resident one.
int32_t ExpertCache::take_slot(SizeClass& size_class, int32_t layer, bool passes) {
  int32_t slot = -1;
  if (passes) {
    if (size_class.passing_count >= std::max(slots_min, size_class.passing_share())) return -1;
    slot = take_free(size_class);
    if (slot < 0) slot = take_discarded(size_class);
    return slot >= 0 ? slot : take_victim(size_class, layer);
  }
  if (size_class.resident_count < resident_max(size_class)) slot = take_free(size_class);
  if (slot >= 0) return slot;
  const int32_t victim = first_victim(size_class, layer);
  if (victim >= 0 && !victims_.use(victim).is_wanted) return take_victim(size_class, layer);
  slot = take_free(size_class);
  if (slot < 0) slot = take_discarded(size_class);
  return slot >= 0 ? slot : take_victim(size_class, layer);
}

int64_t ExpertCache::resident_max(const SizeClass& size_class) const {
  const bool shares = may_read_ahead_ && !size_class.holds_all();
  return size_class.slot_count - (shares ? size_class.staging_share() : 0);
}

int32_t ExpertCache::take_free(SizeClass& size_class) {
  if (size_class.free.empty()) return -1;
  const int32_t slot = size_class.free.back();
  size_class.free.pop_back();
  return slot;
}

int32_t ExpertCache::take_discarded(SizeClass& size_class) {
  if (size_class.discarded.empty()) return -1;
  const int32_t slot = size_class.discarded.front();
  size_class.discarded.pop_front();
  make_free(slot);
  return take_free(size_class);
}

// A guess that is whole and nobody asked for yet.
int32_t ExpertCache::take_staged(SizeClass& size_class) {
  const auto whole =
      std::find_if(size_class.staged.begin(), size_class.staged.end(),
                   [this](int32_t slot) { return slots_[slot].state == State::whole; });
  if (whole == size_class.staged.end()) return -1;
  const int32_t slot = *whole;
  size_class.staged.erase(whole);
  ++stats_.ahead_wasted;
  make_free(slot);
  return take_free(size_class);
}

// The first victim of the layer that gives, else the first of all.
int32_t ExpertCache::first_victim(const SizeClass& size_class, int32_t layer) const {
  const int32_t first = size_class.first_layer;
  const std::span<const int64_t> held =
      std::span(layer_held_).subspan(first, size_class.layer_count);
  const int32_t own = layer < 0 ? -1 : layer - first;
  int32_t victim = victims_.first(first + choose_giver(held, own, size_class.resident_count));
  if (victim >= 0) return victim;
  for (int32_t other = first; other < first + size_class.layer_count; ++other) {
    const int32_t slot = victims_.first(other);
    if (slot < 0) continue;
    if (victim < 0 || goes_before(victims_.use(slot), victims_.use(victim))) victim = slot;
  }
  return victim;
}

int32_t ExpertCache::take_victim(SizeClass& size_class, int32_t layer) {
  const int32_t slot = first_victim(size_class, layer);
  if (slot < 0) return -1;
  make_free(slot);
  return take_free(size_class);
}

void ExpertCache::add_to_counts(const Slot& slot, int64_t change) {
  SizeClass& size_class = classes_[slot.size_class];
  switch (slot.purpose) {
    case Purpose::staged:
      size_class.staged_count += change;
      return;
    case Purpose::passing:
      size_class.passing_count += change;
      return;
    case Purpose::resident:
      size_class.resident_count += change;
      layer_held_[entries_[slot.expert].layer] += change;
      return;
  }
}

void ExpertCache::set_purpose(int32_t index, Purpose purpose) {
  Slot& slot = slots_[index];
  add_to_counts(slot, -1);
  slot.purpose = purpose;
  add_to_counts(slot, 1);
}

void ExpertCache::begin_read(int32_t index, int32_t expert, Purpose purpose) {
  Slot& slot = slots_[index];
  CHECK(slot.state == State::free);
  slot.expert = expert;
  slot.state = State::loading;
  slot.purpose = purpose;
  slot.is_let_go = slot.is_cancelled = slot.is_warming = false;
  if (!std::exchange(slot.is_held, true)) add_held_bytes(classes_[slot.size_class].bytes);
  add_to_counts(slot, 1);
  entries_[expert].slot = index;
}

void ExpertCache::publish_held_bytes(std::atomic<int64_t>& to) {
  published_held_bytes_ = &to;
  add_held_bytes(0);
}

void ExpertCache::add_held_bytes(int64_t bytes) {
  held_bytes_ += bytes;
  if (published_held_bytes_ == nullptr) return;
  published_held_bytes_->store(held_bytes_, std::memory_order_relaxed);
}

void ExpertCache::make_free(int32_t index) {
  Slot& slot = slots_[index];
  SizeClass& size_class = classes_[slot.size_class];
  CHECK(slot.pins == 0);
  add_to_counts(slot, -1);
  victims_.remove(index);
  entries_[slot.expert].slot = -1;
  slot.expert = -1;
  slot.state = State::free;
  size_class.free.push_back(index);
}

SlotUse ExpertCache::use_of(const Entry& entry) const {
  return {.heat = entry.heat, .last_step = entry.last_step, .is_wanted = entry.last_step == step_};
}

// Tells the queue of victims what changed.
void ExpertCache::refresh(int32_t index) {
  if (index < 0) return;
  const Slot& slot = slots_[index];
  if (slot.state == State::whole && slot.pins == 0 && slot.purpose != Purpose::staged) {
    const Entry& entry = entries_[slot.expert];
    victims_.put(index, entry.layer, use_of(entry));
  } else {
    victims_.remove(index);
  }
}

void ExpertCache::submit(int32_t index, ReadUrgency urgency) {
  const Slot& slot = slots_[index];
  const Entry& entry = entries_[slot.expert];
  const ExpertExtent& extent = entry.extent;
  const bool is_reread = faults_.contains(slot.expert);
  stats_.rereads += is_reread ? 1 : 0;
  std::optional<ReadChecksum> checksum;
  if (wants_check(entry, is_reread)) checksum = {extent.hash, extent.file_name};
  reader_->submit({.file = extent.file,
                   .offset = extent.offset,
                   .bytes = extent.bytes,
                   .target = slot.bytes,
                   .tag = static_cast<uint64_t>(index),
                   .urgency = urgency,
                   .is_reread = is_reread,
                   .checksum = checksum});
}

bool ExpertCache::wants_check(const Entry& entry, bool is_reread) const {
  if (verify_ == Verify::first_read) return is_reread || !entry.is_verified;
  return verify_ == Verify::always;
}

ExpertCacheStats ExpertCache::stats() const {
  ExpertCacheStats stats = stats_;
  stats.read_seconds = static_cast<double>(reader_->counters().busy_ns) * 1e-9;
  return stats;
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
  ReadCompletion completion = reader_->wait();
  stats_.wait_seconds += static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9;
  return completion;
}

// A read ended; the arrival, if the step waits for it.
std::optional<ExpertCache::Arrival> ExpertCache::complete(ReadCompletion completion) {
  const auto index = static_cast<int32_t>(completion.tag);
  Slot& slot = slots_[index];
  CHECK(slot.state == State::loading);
  const int32_t expert = slot.expert;
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
  if (slot.purpose == Purpose::staged) {
    complete_staged(index, result);
    return std::nullopt;
  }
  // Cancelled as a read ahead, before it was wanted after all; or else a flipped bit or a passing
  // fault, for which it is read once more.
  if (was_cancelled || (!result.ok() && !was_reread)) {
    submit(index, ReadUrgency::demand);
    return std::nullopt;
  }
  --loading_count_;
  if (!result.ok()) {
    faults_.erase(expert);  // whoever wants it next has two tries again
    make_free(index);
    return Arrival{expert, with_context(std::move(result).error(), entry.extent.name)};
  }
  slot.state = State::whole;
  return Arrival{expert, pin(index)};
}

void ExpertCache::note_repair(int32_t expert) {
  const Error fault = std::move(faults_.extract(expert).mapped());
  if (!reader_->disks().empty()) return;
  events_.push_back(
      fmt::format("{}: {}; right when read again", entries_[expert].extent.name, fault.message));
}

// A fault of a read ahead is nobody's: the expert is read again if it is wanted.
void ExpertCache::complete_staged(int32_t index, const Result<void>& result) {
  Slot& slot = slots_[index];
  SizeClass& size_class = classes_[slot.size_class];
  if (slot.is_warming) {
    end_warming(slot);
    if (!result.ok()) return make_free(index);
    slot.state = State::whole;
    set_purpose(index, Purpose::resident);
    return refresh(index);
  }
  const bool was_cancelled = slot.is_cancelled;
  if (result.ok()) {
    slot.state = State::whole;
    slot.is_cancelled = false;
    if (!was_cancelled) return;
    size_class.discarded.push_back(index);
  } else {
    std::erase(size_class.staged, index);
    make_free(index);
  }
  const bool is_read = result.ok() || result.error().kind != ErrorKind::cancelled;
  ++(is_read ? stats_.ahead_wasted : stats_.ahead_dropped);
}

void ExpertCache::drain() {
  while (loading_count_ > 0) wait_for_arrival();
}

ExpertLease ExpertCache::pin(int32_t slot) {
  ++slots_[slot].pins;
  refresh(slot);
  return ExpertLease(*this, slot, slots_[slot].bytes);
}

void ExpertCache::release(int32_t index) {
  Slot& slot = slots_[index];
  CHECK(slot.pins > 0);
  if (--slot.pins > 0) return;
  if (slot.is_let_go) {
    make_free(index);
  } else {
    refresh(index);
  }
}

void ExpertCache::plan_warm_up(std::vector<int32_t> experts) {
  warm_up_ = std::move(experts);
  std::reverse(warm_up_.begin(), warm_up_.end());
}

bool ExpertCache::warm_up() {
  CHECK(loading_count_ == 0);
  while (warming_count_ < warming_max && begin_warming()) {
  }
  if (warming_count_ == 0) return false;
  complete(reader_->wait());
  return true;
}

bool ExpertCache::begin_warming() {
  while (!warm_up_.empty()) {
    const int32_t expert = warm_up_.back();
    warm_up_.pop_back();
    const Entry& entry = entries_[expert];
    SizeClass& size_class = classes_[entry.size_class];
    if (entry.slot >= 0) continue;
    if (size_class.resident_count + warming_count_ >= resident_max(size_class)) continue;
    const int32_t index = take_free(size_class);
    if (index < 0) continue;
    begin_read(index, expert, Purpose::staged);
    slots_[index].is_warming = true;
    ++warming_count_;
    submit(index, ReadUrgency::look_ahead);
    return true;
  }
  return false;
}

void ExpertCache::end_warming(Slot& slot) {
  slot.is_warming = false;
  --warming_count_;
}

void ExpertCache::seed_heat(int32_t expert, double uses) {
  Entry& entry = entries_[expert];
  entry.heat = add_uses(entry.heat, uses, clock_tokens_, half_life_tokens_);
  refresh(entry.slot);
}

int64_t ExpertCache::slot_count() const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.state != State::given_back; });
}

int64_t ExpertCache::resident_count() const {
  return std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == State::whole && slot.purpose == Purpose::resident;
  });
}

}  // namespace glmd
