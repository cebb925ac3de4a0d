// What a model and the buffers of one pass take, by what they grow with: for the memory plan.
#pragma once

#include <cstdint>

namespace glmd {

struct ScratchSizes {
  struct Use {
    int64_t rows = 0;     // of the largest pass
    int64_t logits = 0;   // rows of it that want logits
    int64_t threads = 0;  // that compute
    int64_t tokens = 0;   // the most that a sequence may have
  };

  int64_t pass_bytes = 0;
  int64_t row_bytes = 0;
  int64_t logits_bytes = 0;  // of a row
  int64_t thread_bytes = 0;
  int64_t thread_token_bytes = 0;

  int64_t bytes(const Use& use) const {
    return pass_bytes + use.rows * row_bytes + use.logits * logits_bytes +
           use.threads * (thread_bytes + use.tokens * thread_token_bytes);
  }
};

// From the sizes in a container alone.
struct ModelSizes {
  int64_t dense_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t key_bytes = 0;        // of attention: a token in one layer
  ScratchSizes scratch;         // of each pass at once
  int64_t arena_bytes_min = 0;  // floor: one expert computing, one in flight, of each size
  int64_t experts_bytes = 0;    // all of them
  int64_t context_max = 0;      // of the checkpoint
};

}  // namespace glmd
