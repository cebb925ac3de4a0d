// Which model runs a container: one line per family (glmd.json names it).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/look_ahead.h"
#include "experts/routing_observer.h"
#include "kernels/kernel_table.h"
#include "kv/kv_format.h"
#include "model/layers/router.h"
#include "model/model.h"
#include "model/model_sizes.h"
#include "model/step_times.h"
#include "storage/container.h"
#include "storage/dense_weights.h"
#include "storage/reader_choice.h"
#include "storage/replica_set.h"

namespace glmd {

struct ModelOptions {
  int threads = 1;
  std::vector<int> processors = {};  // one for each thread, which stays there; empty: anywhere
  const KernelTable* kernels = nullptr;
  int64_t arena_bytes = 0;  // experts
  int64_t kv_pool_bytes = 0;
  KvFormat kv_format = KvFormat::f16;  // a reference container has f32 whatever this says
  int64_t rows_max = 512;              // of one pass
  bool with_draft = false;             // caches and experts of the draft layer
  Verify verify = Verify::first_read;  // with mirrors: always
  std::atomic<int64_t>* experts_held_bytes = nullptr;  // kept up to date; outlives the model
  StepTimes* times = nullptr;                          // measured where given; outlives the model
  LookAhead look_ahead = LookAhead::automatic;
  RoutingSource* routing = nullptr;              // outlives the model; null: the routers route
  std::vector<RoutingObserver*> observers = {};  // of every routed row; they outlive the model
  std::vector<float> usage_prior =
      {};  // uses that each expert starts with, as the cache counts them
  DenseWeights::Progress load_progress = {};  // may end the loading with an error
  bool locks_weights = false;                 // dense ones, in memory, where the limit allows
  ReaderSettings reader = {};
  std::vector<std::string> mirrors = {};  // folders with copies of experts
};

Result<std::unique_ptr<Model>> open_model(const Container& container, const ModelOptions& options);

Result<ModelSizes> model_sizes(const Container& container, bool with_draft,
                               KvFormat kv_format = KvFormat::f16);

}  // namespace glmd
