#include "tools/eval/evaluation_memory.h"

#include <algorithm>

#include "host/memory_sources.h"
#include "model/families/families.h"
#include "model/sequence_state.h"
#include "platform/aligned_memory.h"

namespace glmd {

Result<MemoryPlan> plan_evaluation(const Container& container, std::vector<MemoryLimit> limits,
                                   const EvaluationSize& size) {
  ModelSizes sizes = TRY(model_sizes(container, size.with_draft, size.kv_format));
  if (size.context_tokens > sizes.context_max) {
    return error(ErrorKind::usage, "context: the model was made for at most {} tokens, got {}",
                 sizes.context_max, size.context_tokens);
  }
  if (size.arena_bytes && *size.arena_bytes < sizes.arena_bytes_min) {
    return error(ErrorKind::usage,
                 "--arena: wanted at least {} bytes (two experts of each size), got {}",
                 sizes.arena_bytes_min, *size.arena_bytes);
  }
  sizes.scratch.row_bytes += sizes.scratch.logits_bytes;  // every row may want them
  // A block more than the context: a sequence and its draft layer may each begin one.
  const int64_t tokens = round_up(size.context_tokens, cache_block_tokens) + cache_block_tokens;
  MemoryNeeds needs{.limits = std::move(limits),
                    .model = sizes,
                    .threads = size.threads,
                    .text_bytes = kept_text_bytes(container.folder()),
                    .has_clients = false,
                    .context_tokens = tokens,
                    .sessions = 1,
                    .asked_bytes = {}};
  needs.model.context_max = tokens;
  MemoryPlan plan = TRY(plan_memory(needs));
  plan.rows_max = std::min(plan.rows_max, size.rows_max);
  if (!size.arena_bytes) return plan;
  const int64_t wanted_bytes =
      std::min(*size.arena_bytes, std::max(sizes.experts_bytes, sizes.arena_bytes_min));
  if (wanted_bytes > plan.arena_bytes) {
    return error(ErrorKind::no_memory, "--arena: wanted {} bytes, {} are left; the sum is\n{}",
                 wanted_bytes, plan.arena_bytes, plan.to_text());
  }
  plan.arena_bytes = wanted_bytes;
  return plan;
}

Result<std::vector<MemoryLimit>> machine_limits() {
  std::vector<MemoryLimit> limits = cgroup_limits();
  limits.push_back(TRY(available_memory()));
  return limits;
}

}  // namespace glmd
