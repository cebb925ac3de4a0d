#include "generation/scheduler.h"

#include <algorithm>
#include <utility>

#include "platform/check.h"

namespace glmd {
namespace {

// A prompt this short goes with the next decode pass: it costs the others less than waiting costs
// its reader.
constexpr int64_t short_prompt_rows = 16;

}  // namespace

Scheduler::Scheduler(int64_t sessions_max, int64_t rows_max)
    : rows_max_(rows_max), slots_(static_cast<size_t>(std::min(sessions_max, rows_max))) {
  CHECK(!slots_.empty());
}

void Scheduler::enqueue(std::unique_ptr<Session> session) {
  queue_.push_back(std::move(session));
}

Session* Scheduler::next_admissible() const {
  const bool has_slot = active_count_ < static_cast<int64_t>(slots_.size());
  return has_slot && !queue_.empty() ? queue_.front().get() : nullptr;
}

int64_t Scheduler::admit_next(std::unique_ptr<SequenceState> sequence) {
  CHECK(next_admissible() != nullptr);
  const auto slot = std::find(slots_.begin(), slots_.end(), nullptr);
  *slot = std::move(queue_.front());
  queue_.pop_front();
  running_.push_back(slot->get());
  ++active_count_;
  const int64_t index = slot - slots_.begin();
  (*slot)->admit(std::move(sequence), index);
  return index;
}

void Scheduler::report_positions() {
  int64_t position = 0;
  for (const auto& session : queue_) session->report_position(++position);
}

Session* Scheduler::find(RequestId id) const {
  for (const auto& session : queue_) {
    if (session->id() == id) return session.get();
  }
  for (Session* session : running_) {
    if (session->id() == id) return session;
  }
  return nullptr;
}

std::unique_ptr<Session> Scheduler::remove(RequestId id) {
  std::unique_ptr<Session> removed;
  for (auto place = queue_.begin(); place != queue_.end(); ++place) {
    if ((*place)->id() != id) continue;
    removed = std::move(*place);
    queue_.erase(place);
    return removed;
  }
  for (auto& slot : slots_) {
    if (slot == nullptr || slot->id() != id) continue;
    removed = std::move(slot);
    std::erase(running_, removed.get());
    --active_count_;
    return removed;
  }
  return nullptr;
}

std::vector<RequestId> Scheduler::ids() const {
  std::vector<RequestId> ids;
  for (Session* session : running_) ids.push_back(session->id());
  for (const auto& session : queue_) ids.push_back(session->id());
  return ids;
}

bool Scheduler::is_free(const Session& session) const {
  return !session.is_in_pass() && !session.is_held();
}

bool Scheduler::is_long(const Session& session) const {
  return session.is_prefilling() && session.pending_rows() > std::min(short_prompt_rows, rows_max_);
}

bool Scheduler::has_runnable() const {
  return std::any_of(running_.begin(), running_.end(),
                     [this](const Session* session) { return is_free(*session); });
}

void Scheduler::choose_decode(std::vector<Session*>& chosen) const {
  chosen.clear();
  int64_t rows = 0;
  for (Session* session : running_) {
    if (!is_free(*session) || is_long(*session)) continue;
    if (session->must_run_alone()) return chosen.assign(1, session);
    if (rows + session->pending_rows() > rows_max_) continue;
    rows += session->pending_rows();
    chosen.push_back(session);
  }
}

void Scheduler::choose_prefill(std::vector<Session*>& chosen) const {
  chosen.clear();
  int64_t rows = 0;
  for (Session* session : running_) {
    if (!is_free(*session) || !is_long(*session)) continue;
    if (session->must_run_alone()) {
      if (chosen.empty()) return chosen.push_back(session);
      continue;
    }
    if (rows == rows_max_) break;
    rows += std::min(session->pending_rows(), rows_max_ - rows);
    chosen.push_back(session);
  }
}

}  // namespace glmd
