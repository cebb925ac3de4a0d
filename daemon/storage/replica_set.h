// Several disks with copies of the experts, read as one: each request is split over the disks that
// have it, so that all are done at the same time by what they were measured to give. A disk that
// fails costs no request: its part is read from another, it is left out, and tried again later. One
// that hangs is left out too, and what it has begun is said to be stranded.
// Nor does a damaged copy of an expert, as long as one disk has it right: a re-read takes the whole
// from one disk after the other, checking each, and what was found wrong is not read again until
// its disk was opened anew, after the same pauses as one that fails: the files may be new ones.
// Whom the checksum of a mixture accuses is not known: its disks are suspects until a whole read,
// of this request or the next, leaves one. Thread: the compute thread's, like all block readers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "platform/clock.h"
#include "storage/completion_queue.h"
#include "storage/container.h"
#include "storage/reader_choice.h"

namespace glmd {

// One copy, opened.
struct ReplicaCopy {
  std::unique_ptr<BlockReader> reader;
  std::vector<int32_t> file_of;  // a request's file -> the reader's, or -1
  // What is there, by the request's file and offset; nothing: all of those files.
  std::optional<std::set<std::pair<int32_t, int64_t>>> places;
  std::string description;  // of the reader
};

struct ReplicaSource {
  std::string name;  // for messages: the folder
  // At the start, and again when a disk that failed, or had wrong copies, is tried once more. The
  // reader raises the signal with each completion.
  std::function<Result<ReplicaCopy>(ReadSignal& signal)> open;
  std::optional<std::string> warning = {};  // an event of the start, where it opens
};

struct ReplicaOptions {
  int64_t share_bytes_min = int64_t{512} << 10;  // below it a second disk does not pay
  // Doubled, up to 16 times, with each failure of a disk that was not in order for so long before.
  int64_t retry_pause_ms = 30'000;
};

class ReplicaSet : public BlockReader {
 public:
  // The first source must open. Another one that is damaged or not there is left out for now, which
  // is an event; one that is set wrongly (`bad_input`) is an error.
  static Result<std::unique_ptr<ReplicaSet>> open(std::vector<ReplicaSource> sources,
                                                  const Clock& clock,
                                                  const ReplicaOptions& options = {});
  ~ReplicaSet() override;

  void submit(const ReadRequest& request) override;
  void promote(uint64_t tag) override;
  void cancel(uint64_t tag) override;
  std::optional<ReadCompletion> wait_for(int64_t milliseconds) override;
  std::optional<ReadCompletion> poll() override;
  int64_t outstanding() const override { return outstanding_; }
  std::optional<PendingRead> oldest_pending() const override;
  std::vector<uint64_t> stranded() const override;
  ReadCounters counters() const override;
  std::vector<std::string> take_events() override;
  std::vector<DiskStatus> disks() const override;
  std::string description() const;

 private:
  using Place = std::pair<int32_t, int64_t>;  // a request's file and offset
  struct Disk {
    ReplicaSource source;
    ReplicaCopy copy = {};  // without a reader until it could be opened
    bool is_in_use = false;
    int64_t retry_at_ns = 0, retry_pause_ns = 0;  // of the next try; the pause of that after it
    int64_t tried_at_ns = 0;                      // opened, or not
    double bytes_per_ns = 0;                      // 0: not measured yet
    double lately_bytes = 0, lately_ns = 0;  // which it is the quotient of: the older, the less
    ReadCounters measured = {};              // of this reader, when they were last added to
    ReadCounters past = {};             // of its earlier readers; failures also: copies found wrong
    std::set<Place> wrong_places = {};  // found since it was opened
  };
  struct Share {
    size_t disk = 0;
    int64_t offset = 0, bytes = 0;  // in the request
  };
  struct Part {
    Share share;
    uint64_t tag = 0;  // of the request
    ReadUrgency urgency = ReadUrgency::demand;
  };
  struct Read {
    ReadRequest request;
    std::vector<uint64_t> parts = {};  // outstanding
    std::vector<Share> shares = {};    // done
    std::vector<size_t> failed_disks = {};
    std::vector<std::string> faults = {};  // theirs
    bool is_cancelled = false;
    std::optional<Error> failure = {};
  };

  ReplicaSet(std::vector<ReplicaSource> sources, const Clock& clock, const ReplicaOptions& options);
  Result<void> reopen(Disk& disk);
  void retry_disks();
  void leave_out(Disk& disk, const Error& cause);
  void pause(Disk& disk);
  std::optional<PendingRead> hanging_read(const Disk& disk) const;
  bool has_other(const Read& read) const;
  bool is_due(const Disk& disk) const;
  void leave_out_hanging();
  void take_back_parts(size_t disk);
  bool has(const Disk& disk, const ReadRequest& request) const;
  std::vector<size_t> disks_for(const Read& read) const;
  double rate_of(size_t disk) const;
  static ReadCounters counters_of(const Disk& disk);
  int64_t backlog_bytes(size_t disk, ReadUrgency urgency) const;
  std::vector<Share> split_by_rate(const Read& read) const;
  std::vector<Share> split(const Read& read) const;
  void submit_shares(const Read& read);
  void submit_part(Part part);
  void collect(size_t disk);
  void finish_part(uint64_t part_tag, Result<void> result);
  bool try_elsewhere(Part part);
  void finish_read(uint64_t tag);
  bool settle(uint64_t tag, Result<void>& result);
  void judge(const Read& read, bool is_right);
  void call_wrong(size_t disk, Place place);
  void measure(Disk& disk);

  const Clock& clock_;
  const ReplicaOptions options_;
  ReadSignal signal_;                      // outlives the readers
  CompletionQueue completions_{&signal_};  // checks what several disks gave together
  std::vector<Disk> disks_;
  std::unordered_map<uint64_t, Read> reads_;  // until handed over
  std::unordered_map<uint64_t, Part> parts_;
  uint64_t next_part_ = 0;
  int64_t outstanding_ = 0;
  int64_t next_look_ns_ = 0;                       // for disks that hang
  std::map<Place, std::vector<size_t>> suspects_;  // two disks or more, one of which is wrong
  std::vector<std::string> events_;
};

// The container's own disk and its mirrors; without mirrors a reader of the container alone. With
// mirrors the container outlives the reader.
Result<OpenedReader> open_expert_reader(const Container& container,
                                        const std::vector<std::string>& mirrors,
                                        const ReaderSettings& settings);

}  // namespace glmd
