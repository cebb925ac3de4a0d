#include "tools/replay/cache_replay.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "experts/eviction.h"

namespace glmd {
namespace {

void count(ReplayTotals& totals, const ReplayTrace& trace, const ReplayStep& step, bool is_hit) {
  if (!step.is_counted) return;
  ++totals.wanted;
  if (is_hit) {
    ++totals.hits;
  } else {
    totals.read_bytes += trace.expert_bytes[step.layer];
  }
}

// Expert after expert, each evicting before the next is looked at. The least rank goes first.
ReplayTotals replay_in_order(const ReplayTrace& trace, bool by_count, int64_t slot_count) {
  using Rank = std::pair<int64_t, int64_t>;  // (uses, time of the last): lfu; (0, time): lru
  std::vector<Rank> ranks(static_cast<size_t>(trace.expert_count()));
  std::set<std::pair<Rank, int32_t>> resident;
  ReplayTotals totals;
  int64_t time = 0;
  for (const ReplayStep& step : trace.steps) {
    for (const ReplayUse& use : trace.uses_of(step)) {
      Rank& rank = ranks[use.expert];
      const bool is_hit = resident.erase({rank, use.expert}) > 0;
      count(totals, trace, step, is_hit);
      rank = {by_count ? rank.first + use.rows : 0, ++time};
      if (!is_hit && std::ssize(resident) == slot_count) resident.erase(resident.begin());
      resident.insert({rank, use.expert});
    }
  }
  return totals;
}

// As ExpertCache does it, with the functions it uses.
class DaemonCache {
 public:
  DaemonCache(const ReplayTrace& trace, int64_t slot_count, double half_life_tokens)
      : half_life_steps_(half_life_tokens * static_cast<double>(trace.layer_count())),
        experts_per_layer_(trace.experts_per_layer),
        slot_count_(slot_count),
        heat_(static_cast<size_t>(trace.expert_count()), SlotUse().heat),
        slot_of_(static_cast<size_t>(trace.expert_count()), -1),
        expert_in_(static_cast<size_t>(slot_count), -1),
        held_(static_cast<size_t>(trace.layer_count())),
        victims_(slot_count, trace.layer_count()) {}

  // What the step wants and finds is pinned until end_step().
  void begin_step(std::span<const ReplayUse> wanted, int64_t rows) {
    ++step_;
    clock_ += rows;
    for (const ReplayUse& use : wanted) {
      heat_[use.expert] = add_uses(heat_[use.expert], use.rows, clock_, half_life_steps_);
      if (holds(use.expert)) victims_.remove(slot_of_[use.expert]);
    }
  }
  bool holds(int32_t expert) const { return slot_of_[expert] >= 0; }
  void load(int32_t expert, std::span<const ReplayUse> wanted) {
    int32_t slot = take_slot(layer_of(expert));
    if (slot < 0) {  // the step wants more than there is: what is computed may go
      end_step(wanted);
      slot = take_slot(layer_of(expert));
    }
    expert_in_[slot] = expert;
    slot_of_[expert] = slot;
    ++held_[layer_of(expert)];
  }
  void end_step(std::span<const ReplayUse> wanted) {
    for (const ReplayUse& use : wanted) {
      if (!holds(use.expert)) continue;
      victims_.put(slot_of_[use.expert], layer_of(use.expert),
                   {.heat = heat_[use.expert], .last_step = step_});
    }
  }

 private:
  int32_t layer_of(int32_t expert) const {
    return static_cast<int32_t>(expert / experts_per_layer_);
  }
  int32_t take_slot(int32_t layer) {
    if (free_ < slot_count_) return static_cast<int32_t>(free_++);
    int32_t slot = victims_.first(choose_giver(held_, layer, slot_count_));
    for (int32_t other = 0; slot < 0 && other < std::ssize(held_); ++other) {
      slot = victims_.first(other);
    }
    if (slot < 0) return -1;
    victims_.remove(slot);
    slot_of_[expert_in_[slot]] = -1;
    --held_[layer_of(expert_in_[slot])];
    return slot;
  }

  double half_life_steps_;
  int64_t experts_per_layer_, slot_count_;
  std::vector<double> heat_;
  std::vector<int32_t> slot_of_, expert_in_;
  std::vector<int64_t> held_;  // slots by layer
  VictimQueue victims_;
  int64_t free_ = 0, step_ = 0, clock_ = 0;
};

ReplayTotals replay_daemon(const ReplayTrace& trace, double half_life_tokens, int64_t slot_count) {
  DaemonCache cache(trace, slot_count, half_life_tokens);
  ReplayTotals totals;
  std::vector<int32_t> missing;
  for (const ReplayStep& step : trace.steps) {
    const std::span<const ReplayUse> wanted = trace.uses_of(step);
    cache.begin_step(wanted, step.rows);
    missing.clear();
    for (const ReplayUse& use : wanted) {
      const bool is_hit = cache.holds(use.expert);
      count(totals, trace, step, is_hit);
      if (!is_hit) missing.push_back(use.expert);
    }
    for (const int32_t expert : missing) cache.load(expert, wanted);
    cache.end_step(wanted);
  }
  return totals;
}

// For each use, the step of the next use of the same expert.
std::vector<int64_t> next_uses(const ReplayTrace& trace) {
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> next(trace.uses.size());
  std::vector<int64_t> upcoming(static_cast<size_t>(trace.expert_count()), never);
  for (int64_t index = std::ssize(trace.steps) - 1; index >= 0; --index) {
    const ReplayStep& step = trace.steps[index];
    for (int64_t use = step.first_use; use < step.first_use + step.use_count; ++use) {
      next[use] = upcoming[trace.uses[use].expert];
      upcoming[trace.uses[use].expert] = index;
    }
  }
  return next;
}

ReplayTotals replay_optimum(const ReplayTrace& trace, int64_t slot_count) {
  const std::vector<int64_t> next = next_uses(trace);
  std::vector<int64_t> upcoming(static_cast<size_t>(trace.expert_count()), -1);
  std::set<std::pair<int64_t, int32_t>> resident;  // by next use
  ReplayTotals totals;
  for (const ReplayStep& step : trace.steps) {
    for (int64_t index = step.first_use; index < step.first_use + step.use_count; ++index) {
      const int32_t expert = trace.uses[index].expert;
      const bool is_hit = resident.erase({upcoming[expert], expert}) > 0;
      count(totals, trace, step, is_hit);
      upcoming[expert] = next[index];
      resident.insert({next[index], expert});
    }
    while (std::ssize(resident) > slot_count) resident.erase(std::prev(resident.end()));
  }
  return totals;
}

}  // namespace

void ReplayTrace::add(int32_t layer, int64_t rows, std::span<const int32_t> choices,
                      bool is_counted) {
  const auto first_expert = static_cast<int32_t>(layer * experts_per_layer);
  ReplayStep step{.first_use = std::ssize(uses),
                  .use_count = 0,
                  .rows = rows,
                  .layer = layer,
                  .is_counted = is_counted};
  for (const int32_t choice : choices) {
    const int32_t expert = first_expert + choice;
    const auto same = [expert](const ReplayUse& use) { return use.expert == expert; };
    const auto place = std::find_if(uses.begin() + step.first_use, uses.end(), same);
    if (place == uses.end()) {
      uses.push_back({expert, 1});
    } else {
      ++place->rows;
    }
  }
  step.use_count = std::ssize(uses) - step.first_use;
  steps.push_back(step);
}

ReplayTrace recorded_trace(const RoutingTrace& recorded, int64_t warm_up_tokens) {
  const RoutingShape& shape = recorded.shape;
  std::vector<int32_t> index(shape.expert_bytes.size(), -1);
  for (const RoutingTrace::Step& step : recorded.steps) index[step.layer] = 0;
  ReplayTrace trace;
  trace.experts_per_layer = shape.experts;
  for (size_t layer = 0; layer < index.size(); ++layer) {
    if (index[layer] < 0) continue;
    index[layer] = static_cast<int32_t>(trace.layer_count());
    trace.expert_bytes.push_back(shape.expert_bytes[layer]);
  }
  std::vector<int64_t> rows(static_cast<size_t>(trace.layer_count()));
  std::vector<int32_t> choices;
  for (const RoutingTrace::Step& step : recorded.steps) {
    const int32_t layer = index[step.layer];
    const auto first = recorded.experts.begin() + step.first_row * shape.chosen;
    choices.assign(first, first + step.row_count * shape.chosen);
    trace.add(layer, step.row_count, choices, rows[layer] >= warm_up_tokens);
    if (rows[layer] >= warm_up_tokens && layer == 0) trace.counted_tokens += step.row_count;
    rows[layer] += step.row_count;
  }
  return trace;
}

ReplayTrace synthetic_trace(const SyntheticRoutingOptions& options, int64_t tokens,
                            int64_t warm_up_tokens, int64_t expert_bytes) {
  ReplayTrace trace;
  trace.experts_per_layer = options.experts;
  trace.expert_bytes.assign(static_cast<size_t>(options.layers), expert_bytes);
  trace.counted_tokens = std::max<int64_t>(0, tokens - warm_up_tokens);
  SyntheticRouting routing(options);
  for (int64_t token = 0; token < tokens; ++token) {
    routing.next_token();
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      trace.add(static_cast<int32_t>(layer), 1, routing.chosen(layer), token >= warm_up_tokens);
    }
  }
  return trace;
}

std::vector<ReplayTrace> split_by_layer(const ReplayTrace& trace) {
  std::vector<ReplayTrace> parts(trace.expert_bytes.size());
  for (size_t layer = 0; layer < parts.size(); ++layer) {
    parts[layer].experts_per_layer = trace.experts_per_layer;
    parts[layer].expert_bytes = {trace.expert_bytes[layer]};
    parts[layer].counted_tokens = trace.counted_tokens;
  }
  for (const ReplayStep& step : trace.steps) {
    ReplayTrace& part = parts[step.layer];
    part.steps.push_back(step);
    part.steps.back().first_use = std::ssize(part.uses);
    part.steps.back().layer = 0;
    const auto first_expert = static_cast<int32_t>(step.layer * trace.experts_per_layer);
    for (const ReplayUse& use : trace.uses_of(step)) {
      part.uses.push_back({use.expert - first_expert, use.rows});
    }
  }
  return parts;
}

double ReplayTotals::hit_rate() const {
  return wanted == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(wanted);
}

Result<ReplayPolicy> parse_policy(std::string_view name) {
  using Kind = ReplayPolicy::Kind;
  if (name == "glmd") return ReplayPolicy{Kind::daemon, 0};
  if (name == "lru") return ReplayPolicy{Kind::lru, 0};
  if (name == "lfu") return ReplayPolicy{Kind::lfu, 0};
  if (name == "belady") return ReplayPolicy{Kind::optimum, 0};
  constexpr std::string_view decay = "decay:";
  if (name.substr(0, decay.size()) == decay) {
    const std::string_view text = name.substr(decay.size());
    double tokens = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), tokens);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && tokens >= 0.01 &&
        tokens <= 1e9) {
      return ReplayPolicy{Kind::daemon, tokens};
    }
  }
  return error(ErrorKind::usage,
               "policy: wanted glmd, lru, lfu, belady or decay:TOKENS (0.01 to 1e9), got \"{}\"",
               name);
}

ReplayTotals replay(const ReplayTrace& trace, const ReplayPolicy& policy, int64_t slot_count) {
  switch (policy.kind) {
    case ReplayPolicy::Kind::lru:
      return replay_in_order(trace, false, slot_count);
    case ReplayPolicy::Kind::lfu:
      return replay_in_order(trace, true, slot_count);
    case ReplayPolicy::Kind::optimum:
      return replay_optimum(trace, slot_count);
    case ReplayPolicy::Kind::daemon:
      break;
  }
  const double share = static_cast<double>(slot_count) / static_cast<double>(trace.expert_count());
  return replay_daemon(
      trace, policy.half_life_tokens > 0 ? policy.half_life_tokens : half_life_tokens_for(share),
      slot_count);
}

}  // namespace glmd
