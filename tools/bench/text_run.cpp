#include "text_run.h"

#include "platform/clock.h"

namespace glmd {
namespace {

// a + (now - before)
ExpertCacheStats sum_with_change(const ExpertCacheStats& a, const ExpertCacheStats& before,
                                 const ExpertCacheStats& now) {
  return {.hits = a.hits + now.hits - before.hits,
          .misses = a.misses + now.misses - before.misses,
          .read_bytes = a.read_bytes + now.read_bytes - before.read_bytes,
          .rereads = a.rereads + now.rereads - before.rereads,
          .ahead_issued = a.ahead_issued + now.ahead_issued - before.ahead_issued,
          .ahead_used = a.ahead_used + now.ahead_used - before.ahead_used,
          .ahead_late = a.ahead_late + now.ahead_late - before.ahead_late,
          .ahead_wasted = a.ahead_wasted + now.ahead_wasted - before.ahead_wasted,
          .ahead_dropped = a.ahead_dropped + now.ahead_dropped - before.ahead_dropped,
          .wait_seconds = a.wait_seconds + now.wait_seconds - before.wait_seconds,
          .read_seconds = a.read_seconds + now.read_seconds - before.read_seconds};
}

}  // namespace

void Run::add(const Run& next) {
  seconds.insert(seconds.end(), next.seconds.begin(), next.seconds.end());
  stats = sum_with_change(stats, {}, next.stats);
  head_seconds += next.head_seconds;
}

Result<Run> TextRun::decode(int64_t tokens, double seconds_max) {
  const SteadyClock clock;
  Run run;
  while (std::ssize(run.seconds) < tokens && run.total_seconds() < seconds_max) {
    if (position_ == 0) {
      routing_.begin_text(first_);
      sequence_ = TRY(model_.new_sequence(text_tokens));
      TRY(step(prompt_tokens));
      continue;
    }
    const ExpertCacheStats before = model_.expert_stats();
    const double head_seconds = model_.head_seconds();
    const int64_t begin_ns = clock.now_ns();
    TRY(step(1));
    run.seconds.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-9);
    run.head_seconds += model_.head_seconds() - head_seconds;
    run.stats = sum_with_change(run.stats, before, model_.expert_stats());
  }
  return run;
}

Result<void> TextRun::step(int64_t rows) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows; ++i) {
    ids.push_back(static_cast<int32_t>((first_ + position_ + i) * 31 % model_.shape().vocabulary));
  }
  const BatchPart part{.sequence = sequence_.get(), .tokens = ids, .wants_logits = true};
  const PassPtr pass = TRY(model_.begin({&part, 1}));
  while (!pass->is_done()) TRY(pass->run_layer());
  pass->commit();
  position_ += rows;
  if (position_ < text_tokens) return {};
  position_ = 0;
  first_ += text_tokens;
  return {};
}

}  // namespace glmd
