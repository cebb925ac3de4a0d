#include "tools/replay/cache_replay.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "tools/replay/instant_reader.h"

namespace glmd {
namespace {

void count(ReplayTotals& totals, const ReplayTrace& trace, const ReplayStep& step, int64_t wanted,
           int64_t missed) {
  if (!step.is_counted) return;
  totals.wanted += wanted;
  totals.hits += wanted - missed;
  totals.read_bytes += missed * trace.expert_bytes[step.layer];
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
      const int32_t expert = trace.first_expert(step) + use.expert;
      Rank& rank = ranks[expert];
      const bool is_hit = resident.erase({rank, expert}) > 0;
      count(totals, trace, step, 1, is_hit ? 0 : 1);
      rank = {by_count ? rank.first + use.rows : 0, ++time};
      if (!is_hit && std::ssize(resident) == slot_count) resident.erase(resident.begin());
      resident.insert({rank, expert});
    }
  }
  return totals;
}

// Of experts that are all alike, as the other policies have them; a cache has two slots at least.
ExpertCache open_cache(const ReplayTrace& trace, double half_life_tokens, int64_t slot_count,
                       BlockReader& reader) {
  constexpr int64_t page_bytes = 4096;  // nothing is read into it
  std::vector<ExpertExtent> extents(static_cast<size_t>(trace.expert_count()));
  for (ExpertExtent& extent : extents) extent.bytes = page_bytes;
  const int64_t arena_bytes =
      std::max(slot_count * page_bytes, ExpertCache::arena_bytes_min(extents));
  return ExpertCache::create(std::move(extents), arena_bytes, reader, Verify::off,
                             trace.experts_per_layer, half_life_tokens)
      .value();
}

ReplayTotals replay_daemon(const ReplayTrace& trace, double half_life_tokens, int64_t slot_count) {
  InstantReader reader;
  ExpertCache cache = open_cache(trace, half_life_tokens, slot_count, reader);
  const auto layer_experts = static_cast<int32_t>(trace.experts_per_layer);
  ReplayTotals totals;
  std::vector<ExpertWant> wants;
  int64_t layer = trace.layer_count();
  for (const ReplayStep& step : trace.steps) {
    if (step.layer <= layer) cache.advance(step.rows);  // another pass
    layer = step.layer;
    wants.clear();
    for (const ReplayUse& use : trace.uses_of(step)) {
      wants.push_back(
          {.expert = trace.first_expert(step) + use.expert, .uses = double{1} * use.rows});
    }
    const std::vector<int32_t> missed =
        run_step(cache, {trace.first_expert(step), layer_experts}, wants, pace_of(step.rows));
    count(totals, trace, step, std::ssize(wants), std::ssize(missed));
  }
  return totals;
}

// For each use, the step of the next use of the same expert.
std::vector<int32_t> next_uses(const ReplayTrace& trace) {
  constexpr int32_t never = std::numeric_limits<int32_t>::max();
  CHECK(std::ssize(trace.steps) < never);
  std::vector<int32_t> next(trace.uses.size());
  std::vector<int32_t> upcoming(static_cast<size_t>(trace.expert_count()), never);
  for (int64_t index = std::ssize(trace.steps) - 1; index >= 0; --index) {
    const ReplayStep& step = trace.steps[index];
    for (size_t i = 0; i < step.use_count; ++i) {
      const int32_t expert = trace.first_expert(step) + trace.uses_of(step)[i].expert;
      next[step.first_use + i] = upcoming[expert];
      upcoming[expert] = static_cast<int32_t>(index);
    }
  }
  return next;
}

ReplayTotals replay_optimum(const ReplayTrace& trace, int64_t slot_count) {
  const std::vector<int32_t> next = next_uses(trace);
  std::vector<int32_t> upcoming(static_cast<size_t>(trace.expert_count()), -1);
  std::set<std::pair<int32_t, int32_t>> resident;  // by next use
  ReplayTotals totals;
  for (const ReplayStep& step : trace.steps) {
    for (size_t i = 0; i < step.use_count; ++i) {
      const int32_t expert = trace.first_expert(step) + trace.uses_of(step)[i].expert;
      const bool is_hit = resident.erase({upcoming[expert], expert}) > 0;
      count(totals, trace, step, 1, is_hit ? 0 : 1);
      upcoming[expert] = next[step.first_use + i];
      resident.insert({upcoming[expert], expert});
    }
    while (std::ssize(resident) > slot_count) resident.erase(std::prev(resident.end()));
  }
  return totals;
}

}  // namespace

void ReplayTrace::add(int64_t layer, int64_t rows, std::span<const int32_t> choices,
                      bool is_counted) {
  CHECK(rows <= rows_max);
  CHECK(std::ssize(uses) + std::ssize(choices) <= uses_max);
  const size_t first_use = uses.size();
  for (const int32_t choice : choices) {
    const auto same = [choice](const ReplayUse& use) { return use.expert == choice; };
    const auto place =
        std::find_if(uses.begin() + static_cast<int64_t>(first_use), uses.end(), same);
    if (place == uses.end()) {
      uses.push_back({static_cast<uint16_t>(choice), 1});
    } else {
      ++place->rows;
    }
  }
  steps.push_back({.first_use = static_cast<uint32_t>(first_use),
                   .use_count = static_cast<uint32_t>(uses.size() - first_use),
                   .rows = static_cast<uint16_t>(rows),
                   .layer = static_cast<uint16_t>(layer),
                   .is_counted = is_counted});
}

namespace {

// Room for what a file of so many bytes can become: growing would need twice as much for a moment.
void reserve(ReplayTrace& trace, int64_t file_bytes, int64_t chosen) {
  trace.steps.reserve(static_cast<size_t>(file_bytes / (12 + 2 * chosen)));  // of one row each
  trace.uses.reserve(static_cast<size_t>(file_bytes / (4 + 2 * chosen) * chosen));
}

// Layers of the model become those that occur.
void number_layers(ReplayTrace& trace, const std::vector<int64_t>& expert_bytes) {
  std::vector<int32_t> index(expert_bytes.size(), -1);
  for (const ReplayStep& step : trace.steps) index[step.layer] = 0;
  for (size_t layer = 0; layer < index.size(); ++layer) {
    if (index[layer] < 0) continue;
    index[layer] = static_cast<int32_t>(trace.layer_count());
    trace.expert_bytes.push_back(expert_bytes[layer]);
  }
  for (ReplayStep& step : trace.steps) step.layer = static_cast<uint16_t>(index[step.layer]);
}

void mark_counted(ReplayTrace& trace, std::optional<int64_t> warm_up_tokens) {
  int64_t tokens = 0;
  for (const ReplayStep& step : trace.steps) {
    if (step.layer == trace.steps.front().layer) tokens += step.rows;
  }
  const int64_t uncounted = warm_up_tokens.value_or(tokens / 4);
  std::vector<int64_t> rows(static_cast<size_t>(trace.layer_count()));
  for (ReplayStep& step : trace.steps) {
    step.is_counted = rows[step.layer] >= uncounted;
    if (step.is_counted && step.layer == 0) trace.counted_tokens += step.rows;
    rows[step.layer] += step.rows;
  }
}

}  // namespace

Result<ReplayTrace> recorded_trace(RoutingTraceReader& reader,
                                   std::optional<int64_t> warm_up_tokens) {
  const RoutingShape& shape = reader.shape();
  ReplayTrace trace;
  trace.experts_per_layer = shape.experts;
  reserve(trace, reader.file_bytes(), shape.chosen);
  RoutingRecord record;
  std::vector<int32_t> choices;
  while (TRY(reader.next(record))) {
    const int64_t rows = std::ssize(record.positions);
    if (rows > ReplayTrace::rows_max) {
      return error(ErrorKind::bad_input, "{}: rows of a pass: wanted at most {}, got {}",
                   reader.path(), ReplayTrace::rows_max, rows);
    }
    choices.assign(record.experts.begin(), record.experts.end());
    trace.add(record.layer, rows, choices, false);
  }
  number_layers(trace, shape.expert_bytes);
  mark_counted(trace, warm_up_tokens);
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
      trace.add(layer, 1, routing.chosen(layer), token >= warm_up_tokens);
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
    part.steps.back().first_use = static_cast<uint32_t>(part.uses.size());
    part.steps.back().layer = 0;
    const std::span<const ReplayUse> uses = trace.uses_of(step);
    part.uses.insert(part.uses.end(), uses.begin(), uses.end());
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
  return replay_daemon(trace, policy.half_life_tokens, slot_count);
}

}  // namespace glmd
