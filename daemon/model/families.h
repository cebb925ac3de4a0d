// Which model runs a container: one line per family (glmd.json names it).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "experts/expert_cache.h"
#include "kernels/kernel_table.h"
#include "model/model.h"
#include "storage/container.h"
#include "storage/replica_set.h"

namespace glmd {

struct ModelOptions {
  int threads = 1;
  const KernelTable* kernels = nullptr;
  int64_t context_tokens = 0;  // of one sequence, at most
  int64_t sessions = 1;
  int64_t arena_bytes = 0;  // experts
  int64_t kv_pool_bytes = 0;
  int64_t rows_max = 512;   // of one pass
  bool with_draft = false;  // caches and experts of the draft layer
  Verify verify = Verify::first_read;
  ReaderSettings reader = {};
  std::vector<std::string> mirrors = {};  // folders with copies of experts
};

Result<std::unique_ptr<Model>> open_model(const Container& container, const ModelOptions& options);

// What memory_plan needs to know of a container, from its sizes alone.
struct ModelSizes {
  int64_t dense_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t scratch_bytes_per_row = 0;
  int64_t arena_bytes_min = 0;  // floor: two slots of each expert size
  int64_t experts_bytes = 0;    // all of them
  int64_t context_max = 0;
};
Result<ModelSizes> model_sizes(const Container& container, bool with_draft);

}  // namespace glmd
