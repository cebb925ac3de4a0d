#include "storage/replica_set.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <span>

#include "storage/mirror.h"

namespace glmd {
namespace {

constexpr int64_t retry_pause_factor_max = 16;
constexpr int64_t look_interval_ns = 1'000'000'000;  // for disks that hang
// Of one look at a disk's rate. Bytes count when they come, up to 16 segments of 2 MiB at once:
// half of a look, and an eighth of the sums that weigh a look before by 3/4.
constexpr int64_t measured_bytes_min = int64_t{64} << 20;
constexpr int64_t measured_ns_min = 20'000'000;
constexpr double earlier_weight = 0.75;

ReadCounters sum(const ReadCounters& a, const ReadCounters& b) {
  return {a.bytes + b.bytes, a.busy_ns + b.busy_ns, a.failures + b.failures};
}

std::pair<int32_t, int64_t> place_of(const ReadRequest& request) {
  return {request.file, request.offset};
}

bool contains(const std::vector<size_t>& disks, size_t disk) {
  return std::find(disks.begin(), disks.end(), disk) != disks.end();
}

// The checksum names the container's file; what is wrong is this disk's.
std::string wrong_copy(const std::string& folder, const ReadRequest& request, const Error& error) {
  const std::string_view file = request.checksum->file_name;
  const std::string_view name = file.substr(file.rfind('/') + 1);  // all of it where there is none
  return fmt::format("{}/{}{}", folder, name, error.message.substr(file.size()));
}

Error no_copy(const std::vector<std::string>& faults, ErrorKind kind) {
  if (faults.size() == 1) return error(kind, "{}", faults.front());
  return error(kind, "no disk has it right: {}", fmt::join(faults, "; "));
}

}  // namespace

Result<std::unique_ptr<ReplicaSet>> ReplicaSet::open(std::vector<ReplicaSource> sources,
                                                     const Clock& clock,
                                                     const ReplicaOptions& options) {
  CHECK(!sources.empty());
  std::unique_ptr<ReplicaSet> set(new ReplicaSet(std::move(sources), clock, options));
  for (size_t i = 0; i < set->disks_.size(); ++i) {
    Disk& disk = set->disks_[i];
    Result<void> opened = set->reopen(disk);
    if (opened.ok()) {
      if (disk.source.warning) set->events_.push_back(*disk.source.warning);
      continue;
    }
    if (i == 0 || opened.error().kind == ErrorKind::bad_input) return std::move(opened).error();
    set->leave_out(disk, opened.error());
  }
  return set;
}

ReplicaSet::ReplicaSet(std::vector<ReplicaSource> sources, const Clock& clock,
                       const ReplicaOptions& options)
    : clock_(clock), options_(options) {
  for (ReplicaSource& source : sources) {
    disks_.push_back({.source = std::move(source),
                      .copy = {},
                      .is_in_use = true,
                      .retry_pause_ns = options.retry_pause_ms * 1'000'000});
  }
}

// The readers wait for what is under way, each for itself.
ReplicaSet::~ReplicaSet() = default;

Result<void> ReplicaSet::reopen(Disk& disk) {
  disk.tried_at_ns = clock_.now_ns();
  ReplicaCopy copy = TRY(disk.source.open(signal_));
  disk.past = counters_of(disk);
  disk.copy = std::move(copy);
  disk.measured = {};
  disk.wrong_places.clear();
  disk.is_in_use = true;
  const auto index = static_cast<size_t>(&disk - disks_.data());
  std::erase_if(suspects_, [&](const auto& one) { return contains(one.second, index); });
  return {};
}

// To be opened anew: left out, or with copies that were wrong and may be others now.
bool ReplicaSet::is_due(const Disk& disk) const {
  return (!disk.is_in_use || !disk.wrong_places.empty()) && clock_.now_ns() >= disk.retry_at_ns;
}

// A disk is opened anew when its pause is over and nothing of it is under way any more. Where that
// fails, what was right on it is read on.
void ReplicaSet::retry_disks() {
  for (Disk& disk : disks_) {
    if (!is_due(disk)) continue;
    if (disk.copy.reader && disk.copy.reader->outstanding() > 0) continue;
    const char* what = disk.is_in_use ? "its wrong copies" : "this disk";
    if (reopen(disk).ok()) {
      events_.push_back(fmt::format("{}: trying {} again", disk.source.name, what));
    } else {
      pause(disk);
    }
  }
}

void ReplicaSet::pause(Disk& disk) {
  const int64_t now_ns = clock_.now_ns();
  if (now_ns < disk.retry_at_ns) return;  // it is in one
  const int64_t pause_ns = options_.retry_pause_ms * 1'000'000;
  if (now_ns - disk.tried_at_ns >= disk.retry_pause_ns) disk.retry_pause_ns = pause_ns;
  disk.retry_at_ns = now_ns + disk.retry_pause_ns;
  disk.retry_pause_ns = std::min(2 * disk.retry_pause_ns, retry_pause_factor_max * pause_ns);
}

void ReplicaSet::leave_out(Disk& disk, const Error& cause) {
  if (!disk.is_in_use) return;
  disk.is_in_use = false;
  pause(disk);
  // Most causes begin with the path themselves.
  const std::string& name = disk.source.name;
  const int64_t left_ns = disk.retry_at_ns - clock_.now_ns();
  events_.push_back(fmt::format("{}{}; reading from the other disks, trying again in {} s",
                                cause.message.starts_with(name) ? "" : name + ": ", cause.message,
                                (left_ns + 999'999'999) / 1'000'000'000));
}

void ReplicaSet::leave_out_hanging() {
  const int64_t now_ns = clock_.now_ns();
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + look_interval_ns;
  for (size_t i = 0; i < disks_.size(); ++i) {
    Disk& disk = disks_[i];
    if (!disk.is_in_use) continue;
    const std::optional<PendingRead> read = hanging_read(disk);
    if (!read) continue;
    leave_out(disk, error(ErrorKind::io, "{}: read of {} bytes at {}: no answer for {} s",
                          read->path, read->bytes, read->offset, read->seconds(now_ns)));
    take_back_parts(i);
  }
}

std::optional<PendingRead> ReplicaSet::hanging_read(const Disk& disk) const {
  if (!disk.copy.reader) return std::nullopt;
  std::optional<PendingRead> oldest = disk.copy.reader->oldest_pending();
  return oldest && oldest->hangs(clock_.now_ns()) ? std::move(oldest) : std::nullopt;
}

// A disk in use has it: not the one that hangs.
bool ReplicaSet::has_other(const Read& read) const {
  const std::vector<size_t> disks = disks_for(read);
  return !disks.empty() && disks_[disks.front()].is_in_use;
}

// What a disk was not asked for yet is read from others where they have it. The rest keeps its
// place in memory until the disk answers.
void ReplicaSet::take_back_parts(size_t index) {
  for (const auto& [part_tag, part] : parts_) {
    if (part.share.disk != index || !has_other(reads_.at(part.tag))) continue;
    disks_[index].copy.reader->cancel(part_tag);
  }
}

std::vector<uint64_t> ReplicaSet::stranded() const {
  std::vector<uint64_t> tags;
  for (size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i].is_in_use || !hanging_read(disks_[i])) continue;
    for (const auto& [part_tag, part] : parts_) {
      if (part.share.disk == i && has_other(reads_.at(part.tag))) tags.push_back(part.tag);
    }
  }
  return tags;
}

bool ReplicaSet::has(const Disk& disk, const ReadRequest& request) const {
  if (!disk.copy.reader || disk.copy.file_of[static_cast<size_t>(request.file)] < 0) return false;
  return !disk.copy.places || disk.copy.places->contains({request.file, request.offset});
}

// Those that have it and did not fail this read: those in use; else those of them that are to be
// opened anew; else others; else, since nothing is lost by it, those that had it wrong before.
std::vector<size_t> ReplicaSet::disks_for(const Read& read) const {
  std::array<std::vector<size_t>, 4> ranks;
  for (size_t i = 0; i < disks_.size(); ++i) {
    if (!has(disks_[i], read.request) || contains(read.failed_disks, i)) continue;
    const bool is_wrong = disks_[i].wrong_places.contains(place_of(read.request));
    ranks[is_wrong ? 3 : !disks_[i].is_in_use ? 2 : is_due(disks_[i]) ? 1 : 0].push_back(i);
  }
  for (std::vector<size_t>& disks : ranks) {
    if (!disks.empty()) return std::move(disks);
  }
  return {};
}

// A disk not measured yet is taken for as fast as the fastest; a slow one still gets so much that
// it is measured again.
double ReplicaSet::rate_of(size_t disk) const {
  double fastest = 0;
  for (const Disk& each : disks_) fastest = std::max(fastest, each.bytes_per_ns);
  if (fastest == 0) return 1;
  const double rate = disks_[disk].bytes_per_ns;
  return rate == 0 ? fastest : std::max(rate, fastest / 64);
}

// What is before a new read of that urgency.
int64_t ReplicaSet::backlog_bytes(size_t disk, ReadUrgency urgency) const {
  int64_t bytes = 0;
  for (const auto& [tag, part] : parts_) {
    if (part.share.disk != disk) continue;
    if (urgency == ReadUrgency::demand && part.urgency == ReadUrgency::look_ahead) continue;
    bytes += part.share.bytes;
  }
  return bytes;
}

// All disks end at the same time T: share = T * rate - backlog. One whose share would be a crumb is
// left out and the rest divided again.
std::vector<ReplicaSet::Share> ReplicaSet::split_by_rate(const Read& read) const {
  const ReadRequest& request = read.request;
  std::vector<size_t> disks = disks_for(read);
  std::vector<double> shares;
  for (;;) {
    double bytes = static_cast<double>(request.bytes), rate = 0;
    std::vector<double> backlogs;
    for (const size_t disk : disks) {
      backlogs.push_back(static_cast<double>(backlog_bytes(disk, request.urgency)));
      bytes += backlogs.back();
      rate += rate_of(disk);
    }
    shares.clear();
    for (size_t i = 0; i < disks.size(); ++i) {
      shares.push_back(bytes / rate * rate_of(disks[i]) - backlogs[i]);
    }
    const auto least = std::min_element(shares.begin(), shares.end());
    if (disks.size() == 1 || *least >= static_cast<double>(options_.share_bytes_min)) break;
    disks.erase(disks.begin() + (least - shares.begin()));
  }
  std::vector<Share> split;
  int64_t begin = 0;
  double end = 0;
  for (size_t i = 0; i < disks.size(); ++i) {
    end += shares[i];
    const int64_t block_end =
        i + 1 == disks.size()
            ? request.bytes
            : static_cast<int64_t>(end) / ReadQueue::alignment * ReadQueue::alignment;
    if (block_end > begin) split.push_back({disks[i], begin, block_end - begin});
    begin = std::max(begin, block_end);
  }
  return split;
}

// All of it from one disk tells whether that one has it right: a re-read wants to know, and so does
// every read while there are suspects.
std::vector<ReplicaSet::Share> ReplicaSet::split(const Read& read) const {
  const std::vector<size_t> disks = disks_for(read);
  CHECK(!disks.empty());
  const auto suspects = suspects_.find(place_of(read.request));
  if (suspects != suspects_.end()) {
    for (const size_t disk : disks) {
      if (contains(suspects->second, disk)) return {{disk, 0, read.request.bytes}};
    }
  }
  if (read.request.is_reread) return {{disks.front(), 0, read.request.bytes}};
  return split_by_rate(read);
}

void ReplicaSet::submit(const ReadRequest& request) {
  leave_out_hanging();
  retry_disks();
  ++outstanding_;
  const auto [read, is_new] = reads_.emplace(request.tag, Read{.request = request});
  CHECK(is_new);
  submit_shares(read->second);
}

void ReplicaSet::submit_shares(const Read& read) {
  const ReadRequest& request = read.request;
  for (const Share& share : split(read)) {
    submit_part({.share = share, .tag = request.tag, .urgency = request.urgency});
  }
}

void ReplicaSet::submit_part(Part part) {
  Read& read = reads_.at(part.tag);
  const ReadRequest& request = read.request;
  const Disk& disk = disks_[part.share.disk];
  const uint64_t part_tag = next_part_++;
  disk.copy.reader->submit({.file = disk.copy.file_of[static_cast<size_t>(request.file)],
                            .offset = request.offset + part.share.offset,
                            .bytes = part.share.bytes,
                            .target = request.target + part.share.offset,
                            .tag = part_tag,
                            .urgency = part.urgency});
  read.parts.push_back(part_tag);
  parts_.emplace(part_tag, std::move(part));
}

void ReplicaSet::promote(uint64_t tag) {
  const auto read = reads_.find(tag);
  if (read == reads_.end()) return;
  read->second.request.urgency = ReadUrgency::demand;
  for (const uint64_t part_tag : read->second.parts) {
    Part& part = parts_.at(part_tag);
    part.urgency = ReadUrgency::demand;
    disks_[part.share.disk].copy.reader->promote(part_tag);
  }
}

void ReplicaSet::cancel(uint64_t tag) {
  const auto read = reads_.find(tag);
  if (read == reads_.end()) return;
  read->second.is_cancelled = true;
  for (const uint64_t part_tag : read->second.parts) {
    disks_[parts_.at(part_tag).share.disk].copy.reader->cancel(part_tag);
  }
}

std::optional<ReadCompletion> ReplicaSet::wait_for(int64_t milliseconds) {
  CHECK(outstanding_ > 0);
  const int64_t end_ms = steady_ms() + milliseconds;
  for (;;) {
    leave_out_hanging();
    if (std::optional<ReadCompletion> completion = poll()) return completion;
    const int64_t left_ms = end_ms - steady_ms();
    if (left_ms <= 0) return std::nullopt;
    signal_.wait_for(left_ms);
  }
}

std::optional<ReadCompletion> ReplicaSet::poll() {
  for (size_t disk = 0; disk < disks_.size(); ++disk) collect(disk);
  while (std::optional<ReadCompletion> completion = completions_.poll()) {
    if (!settle(completion->tag, completion->result)) continue;
    reads_.erase(completion->tag);
    --outstanding_;
    return completion;
  }
  return std::nullopt;
}

void ReplicaSet::collect(size_t index) {
  Disk& disk = disks_[index];
  if (!disk.copy.reader) return;
  while (std::optional<ReadCompletion> completion = disk.copy.reader->poll()) {
    finish_part(completion->tag, std::move(completion->result));
  }
  measure(disk);
}

void ReplicaSet::measure(Disk& disk) {
  const ReadCounters now = disk.copy.reader->counters();
  const int64_t bytes = now.bytes - disk.measured.bytes;
  const int64_t busy_ns = now.busy_ns - disk.measured.busy_ns;
  if (bytes < measured_bytes_min || busy_ns < measured_ns_min) return;
  disk.measured = now;
  disk.lately_bytes = earlier_weight * disk.lately_bytes + static_cast<double>(bytes);
  disk.lately_ns = earlier_weight * disk.lately_ns + static_cast<double>(busy_ns);
  disk.bytes_per_ns = disk.lately_bytes / disk.lately_ns;
}

void ReplicaSet::finish_part(uint64_t part_tag, Result<void> result) {
  Part part = std::move(parts_.extract(part_tag).mapped());
  const uint64_t tag = part.tag;
  Read& read = reads_.at(tag);
  std::erase(read.parts, part_tag);
  Disk& disk = disks_[part.share.disk];
  if (result.ok()) {
    read.shares.push_back(part.share);
  } else if (result.error().kind == ErrorKind::cancelled) {
    // Taken back from a disk that hangs, or else cancelled by the caller.
    if (!try_elsewhere(part) && !read.failure) read.failure = std::move(result).error();
  } else {
    leave_out(disk, result.error());
    read.failed_disks.push_back(part.share.disk);
    read.faults.push_back(result.error().message);
    if (!try_elsewhere(part)) {
      read.failure = read.request.is_reread ? no_copy(read.faults, result.error().kind)
                                            : std::move(result).error();
    }
  }
  if (read.parts.empty()) finish_read(tag);
}

// False where no disk is left that has it and has not failed at it.
bool ReplicaSet::try_elsewhere(Part part) {
  const Read& read = reads_.at(part.tag);
  if (read.is_cancelled || read.failure) return false;
  const std::vector<size_t> disks = disks_for(read);
  if (disks.empty()) return false;
  part.share.disk = disks.front();
  submit_part(part);
  return true;
}

void ReplicaSet::finish_read(uint64_t tag) {
  const Read& read = reads_.at(tag);
  if (read.failure) {
    completions_.add(read.request, *read.failure);
  } else {
    completions_.add(read.request, {});
  }
}

// What the check of a read means for its disks. False where a re-read goes on at another disk.
bool ReplicaSet::settle(uint64_t tag, Result<void>& result) {
  Read& read = reads_.at(tag);
  if (!read.request.checksum) return true;
  if (!result.ok() && result.error().kind != ErrorKind::corrupt) return true;
  judge(read, result.ok());
  if (result.ok() || !read.request.is_reread) return true;
  const size_t disk = read.shares.front().disk;  // of all of it
  read.failed_disks.push_back(disk);
  read.faults.push_back(wrong_copy(disks_[disk].source.name, read.request, result.error()));
  if (read.is_cancelled || disks_for(read).empty()) {
    result = no_copy(read.faults, ErrorKind::corrupt);
    return true;
  }
  read.shares.clear();
  submit_shares(read);
  return false;
}

// One disk's bytes speak for themselves; wrong ones of several make suspects of these. A suspect
// that is right leaves the others, the last one of which is the wrong one.
void ReplicaSet::judge(const Read& read, bool is_right) {
  const Place place = place_of(read.request);
  std::vector<size_t> disks;
  for (const Share& share : read.shares) {
    if (!contains(disks, share.disk)) disks.push_back(share.disk);
  }
  if (disks.size() > 1) {
    if (!is_right) suspects_[place] = std::move(disks);
    return;
  }
  if (!is_right) {
    call_wrong(disks.front(), place);
    suspects_.erase(place);
    return;
  }
  disks_[disks.front()].wrong_places.erase(place);
  const auto suspects = suspects_.find(place);
  if (suspects == suspects_.end()) return;
  std::erase(suspects->second, disks.front());
  if (suspects->second.size() > 1) return;
  call_wrong(suspects->second.front(), place);
  suspects_.erase(suspects);
}

// Logged at 1, 2, 4, 8 ... of a disk.
void ReplicaSet::call_wrong(size_t index, Place place) {
  Disk& disk = disks_[index];
  if (!disk.wrong_places.insert(place).second) return;
  ++disk.past.failures;
  const size_t count = disk.wrong_places.size();
  if (count == 1 && disk.is_in_use) pause(disk);
  if (!std::has_single_bit(count)) return;
  events_.push_back(fmt::format("{}: wrong bytes of {} expert{}, read from the other disks",
                                disk.source.name, count, count == 1 ? "" : "s"));
}

// Of all its readers.
ReadCounters ReplicaSet::counters_of(const Disk& disk) {
  return disk.copy.reader ? sum(disk.past, disk.copy.reader->counters()) : disk.past;
}

std::optional<PendingRead> ReplicaSet::oldest_pending() const {
  std::optional<PendingRead> oldest;
  for (const Disk& disk : disks_) {
    if (!disk.copy.reader) continue;
    std::optional<PendingRead> one = disk.copy.reader->oldest_pending();
    if (one && (!oldest || one->begun_ns < oldest->begun_ns)) oldest = std::move(one);
  }
  return oldest;
}

// Disks are busy at the same time: as long as the one that was longest.
ReadCounters ReplicaSet::counters() const {
  ReadCounters total;
  for (const Disk& disk : disks_) {
    const ReadCounters one = counters_of(disk);
    const int64_t busy_ns = std::max(total.busy_ns, one.busy_ns);
    total = sum(total, one);
    total.busy_ns = busy_ns;
  }
  return total;
}

std::vector<std::string> ReplicaSet::take_events() {
  return std::exchange(events_, {});
}

std::vector<DiskStatus> ReplicaSet::disks() const {
  std::vector<DiskStatus> list;
  for (const Disk& disk : disks_) {
    list.push_back({.name = disk.source.name,
                    .counters = counters_of(disk),
                    .bytes_per_second = disk.bytes_per_ns * 1e9,
                    .is_in_use = disk.is_in_use});
  }
  return list;
}

std::string ReplicaSet::description() const {
  std::string text = fmt::format("{} disks", disks_.size());
  for (const Disk& disk : disks_) {
    text += fmt::format("; {}: {}", disk.source.name,
                        disk.copy.reader ? disk.copy.description : "not there");
  }
  return text;
}

namespace {

Result<ReplicaCopy> open_copy(const std::vector<std::string>& paths, ReaderSettings settings,
                              ReadSignal& signal) {
  settings.queue.signal = &signal;
  OpenedReader opened = TRY(open_block_reader(paths, settings));
  return ReplicaCopy{.reader = std::move(opened.reader),
                     .file_of = {},
                     .places = {},
                     .description = std::move(opened.description)};
}

ReplicaSource source_of(const Container& container, const ReaderSettings& settings) {
  return {.name = container.folder(),
          .open = [&container, settings](ReadSignal& signal) -> Result<ReplicaCopy> {
            ReplicaCopy copy = TRY(open_copy(container.files(), settings, signal));
            copy.file_of.resize(container.files().size());
            std::iota(copy.file_of.begin(), copy.file_of.end(), 0);
            return copy;
          }};
}

ReplicaSource source_of(const std::string& folder, const Container& container,
                        std::span<const std::string> others, const ReaderSettings& settings) {
  return {.name = folder,
          .open = [folder, &container, others = std::vector(others.begin(), others.end()),
                   settings](ReadSignal& signal) -> Result<ReplicaCopy> {
            Mirror mirror = TRY(Mirror::open(folder, container, others));
            ReplicaCopy copy = TRY(open_copy(mirror.paths, settings, signal));
            copy.file_of = std::move(mirror.file_of);
            copy.places = std::move(mirror.expert_places);
            return copy;
          },
          .warning = same_device_warning(folder, container)};
}

}  // namespace

Result<OpenedReader> open_expert_reader(const Container& container,
                                        const std::vector<std::string>& mirrors,
                                        const ReaderSettings& settings) {
  if (mirrors.empty()) return open_block_reader(container.files(), settings);
  std::vector<ReplicaSource> sources = {source_of(container, settings)};
  for (size_t i = 0; i < mirrors.size(); ++i) {
    sources.push_back(source_of(mirrors[i], container, std::span(mirrors).first(i), settings));
  }
  static const SteadyClock clock;
  std::unique_ptr<ReplicaSet> set = TRY(ReplicaSet::open(std::move(sources), clock));
  OpenedReader opened;
  opened.description = set->description();
  opened.reader = std::move(set);
  return opened;
}

}  // namespace glmd
