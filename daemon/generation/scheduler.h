// Who waits, who runs, and what goes into the next pass. Requests wait in the order they came; as
// many run as there are slots. Rows of running sessions share one pass, and so do short prompts;
// long prompts get a pass of their own in blocks of `rows_max` rows, so that each expert is read
// once per block, and decode passes run between its layers. Thread: compute.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "generation/session.h"

namespace glmd {

class Scheduler {
 public:
  Scheduler(int64_t sessions_max, int64_t rows_max);

  void enqueue(std::unique_ptr<Session> session);
  // The first in the queue, if a slot is free for it.
  Session* next_admissible() const;
  int64_t admit_next(std::unique_ptr<SequenceState> sequence);  // returns the slot
  void report_positions();                                      // to those who wait

  Session* find(RequestId id) const;
  std::unique_ptr<Session> remove(RequestId id);
  std::vector<RequestId> ids() const;
  int64_t active_count() const { return active_count_; }
  int64_t queued_count() const { return static_cast<int64_t>(queue_.size()); }

  // Is there a session for a pass: neither held nor in one already?
  bool has_runnable() const;
  // Those for the next pass; one that must run alone comes alone.
  void choose_decode(std::vector<Session*>& chosen) const;
  void choose_prefill(std::vector<Session*>& chosen) const;

 private:
  bool is_free(const Session& session) const;
  bool is_long(const Session& session) const;

  int64_t rows_max_;
  std::deque<std::unique_ptr<Session>> queue_;
  std::vector<std::unique_ptr<Session>> slots_;
  std::vector<Session*> running_;  // in the order of admission
  int64_t active_count_ = 0;
};

}  // namespace glmd
