#include "storage/replica_set.h"

#include <algorithm>
#include <numeric>

#include "storage/mirror.h"

namespace glmd {
namespace {

constexpr int64_t retry_pause_factor_max = 16;
constexpr int64_t measured_bytes_min = int64_t{16} << 20;  // for one look at a disk's rate
constexpr double measured_weight = 0.25;                   // of the newest look

ReadCounters sum(const ReadCounters& a, const ReadCounters& b) {
  return {a.bytes + b.bytes, a.busy_ns + b.busy_ns, a.failures + b.failures};
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
    if (opened.ok()) continue;
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
  ReplicaCopy copy = TRY(disk.source.open(signal_));
  if (disk.copy.reader) disk.past = sum(disk.past, disk.copy.reader->counters());
  disk.copy = std::move(copy);
  disk.measured = {};
  disk.is_in_use = true;
  return {};
}

// A disk is tried again when its pause is over and nothing of it is under way any more.
void ReplicaSet::retry_disks() {
  for (Disk& disk : disks_) {
    if (disk.is_in_use || clock_.now_ns() < disk.retry_at_ns) continue;
    if (disk.copy.reader && disk.copy.reader->outstanding() > 0) continue;
    if (reopen(disk).ok()) {
      events_.push_back(fmt::format("{}: trying this disk again", disk.source.name));
    } else {
      disk.retry_at_ns = clock_.now_ns() + disk.retry_pause_ns;
    }
  }
}

void ReplicaSet::leave_out(Disk& disk, const Error& cause) {
  if (!disk.is_in_use) return;
  disk.is_in_use = false;
  disk.retry_at_ns = clock_.now_ns() + disk.retry_pause_ns;
  events_.push_back(fmt::format("{}: {}; reading from the other disks, trying again in {} s",
                                disk.source.name, cause.message,
                                disk.retry_pause_ns / 1'000'000'000));
  disk.retry_pause_ns = std::min(2 * disk.retry_pause_ns,
                                 retry_pause_factor_max * options_.retry_pause_ms * 1'000'000);
}

bool ReplicaSet::has(const Disk& disk, const ReadRequest& request) const {
  if (!disk.copy.reader || disk.copy.file_of[static_cast<size_t>(request.file)] < 0) return false;
  return !disk.copy.places || disk.copy.places->contains({request.file, request.offset});
}

// Those in use that have it; if there are none, those that have it.
std::vector<size_t> ReplicaSet::disks_for(const ReadRequest& request) const {
  std::vector<size_t> in_use, all;
  for (size_t i = 0; i < disks_.size(); ++i) {
    if (!has(disks_[i], request)) continue;
    all.push_back(i);
    if (disks_[i].is_in_use) in_use.push_back(i);
  }
  return in_use.empty() ? all : in_use;
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
std::vector<ReplicaSet::Share> ReplicaSet::split_anew(const ReadRequest& request) const {
  std::vector<size_t> disks = disks_for(request);
  CHECK(!disks.empty());
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

// A re-read takes every byte from another disk than the last time.
std::vector<ReplicaSet::Share> ReplicaSet::split(const ReadRequest& request) const {
  const auto last = last_shares_.find({request.file, request.offset});
  const std::vector<size_t> disks = disks_for(request);
  if (!request.is_reread || last == last_shares_.end() || disks.size() < 2) {
    return split_anew(request);
  }
  std::vector<Share> shares = last->second;
  for (Share& share : shares) {
    const auto next = std::upper_bound(disks.begin(), disks.end(), share.disk);
    share.disk = next == disks.end() ? disks.front() : *next;
  }
  return shares;
}

void ReplicaSet::submit(const ReadRequest& request) {
  retry_disks();
  ++outstanding_;
  const std::vector<Share> shares = split(request);
  reads_[request.tag].request = request;
  for (const Share& share : shares) {
    submit_part(
        {.share = share, .tag = request.tag, .urgency = request.urgency, .failed_disks = {}});
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

ReadCompletion ReplicaSet::wait() {
  CHECK(outstanding_ > 0);
  for (;;) {
    if (std::optional<ReadCompletion> completion = poll()) return std::move(*completion);
    signal_.wait();
  }
}

std::optional<ReadCompletion> ReplicaSet::poll() {
  for (size_t disk = 0; disk < disks_.size(); ++disk) collect(disk);
  std::optional<ReadCompletion> completion = completions_.poll();
  outstanding_ -= completion ? 1 : 0;
  return completion;
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
  if (bytes < measured_bytes_min || busy_ns <= 0) return;
  disk.measured = now;
  const double rate = static_cast<double>(bytes) / static_cast<double>(busy_ns);
  disk.bytes_per_ns = disk.bytes_per_ns == 0
                          ? rate
                          : measured_weight * rate + (1 - measured_weight) * disk.bytes_per_ns;
}

void ReplicaSet::finish_part(uint64_t part_tag, Result<void> result) {
  Part part = std::move(parts_.extract(part_tag).mapped());
  const uint64_t tag = part.tag;
  Read& read = reads_.at(tag);
  std::erase(read.parts, part_tag);
  Disk& disk = disks_[part.share.disk];
  if (result.ok()) {
    disk.retry_pause_ns = options_.retry_pause_ms * 1'000'000;
    read.shares.push_back(part.share);
  } else if (result.error().kind == ErrorKind::cancelled) {
    read.failure = std::move(result).error();
  } else {
    leave_out(disk, result.error());
    if (!try_elsewhere(std::move(part))) read.failure = std::move(result).error();
  }
  if (read.parts.empty()) finish_read(tag);
}

// False where no disk is left that has it and has not failed at it.
bool ReplicaSet::try_elsewhere(Part part) {
  const Read& read = reads_.at(part.tag);
  if (read.is_cancelled || read.failure) return false;
  part.failed_disks.push_back(part.share.disk);
  for (const size_t disk : disks_for(read.request)) {
    if (std::count(part.failed_disks.begin(), part.failed_disks.end(), disk) > 0) continue;
    part.share.disk = disk;
    submit_part(std::move(part));
    return true;
  }
  return false;
}

void ReplicaSet::finish_read(uint64_t tag) {
  Read read = std::move(reads_.extract(tag).mapped());
  if (read.failure) {
    completions_.add(read.request, std::move(*read.failure));
    return;
  }
  std::sort(read.shares.begin(), read.shares.end(),
            [](const Share& a, const Share& b) { return a.offset < b.offset; });
  last_shares_[{read.request.file, read.request.offset}] = std::move(read.shares);
  completions_.add(read.request, {});
}

ReadCounters ReplicaSet::counters() const {
  ReadCounters total;
  for (const DiskStatus& disk : disks()) total = sum(total, disk.counters);
  return total;
}

std::vector<std::string> ReplicaSet::take_events() {
  return std::exchange(events_, {});
}

std::vector<DiskStatus> ReplicaSet::disks() const {
  std::vector<DiskStatus> list;
  for (const Disk& disk : disks_) {
    const ReadCounters now = disk.copy.reader ? disk.copy.reader->counters() : ReadCounters{};
    list.push_back({.name = disk.source.name,
                    .counters = sum(disk.past, now),
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
          }};
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
