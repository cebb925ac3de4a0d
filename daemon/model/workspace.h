// The buffers of one pass, kept from pass to pass so that a step takes no memory. They grow only,
// and scratch_sizes() says how far.
#pragma once

#include <cstdint>
#include <vector>

#include "compute/linear.h"
#include "experts/look_ahead.h"
#include "experts/run_experts.h"
#include "model/layers/router.h"
#include "model/model_sizes.h"
#include "model/sequence_state.h"
#include "model/step_times.h"
#include "platform/grown.h"
#include "storage/checkpoint_config.h"

namespace glmd {

// One token of a pass.
struct PassRow {
  GlmSequence* sequence;
  int64_t position;
  int64_t part;
};

// What each chosen expert of a layer has to do.
struct WorkList {
  std::vector<ExpertWork> works;
  std::vector<int32_t> rows, outputs;  // of all works, one after the other
  std::vector<int32_t> ends;           // [experts]
  std::vector<double> uses;            // [rows]
};

struct Workspace {
  StepTimes* times = nullptr;

  std::vector<float> hidden;    // [rows][hidden]: the residual stream
  std::vector<float> normed;    // [rows][hidden]
  std::vector<float> cos, sin;  // [rows][rope / 2]
  ActivationRows normed_rows, rank_rows, mixed_rows;

  std::vector<float> query_rank;  // [rows][q_lora_rank], after its norm
  std::vector<float> key_raw;     // [rows][kv_lora_rank + rope]
  std::vector<float> queries;     // [rows][heads][nope + rope]
  std::vector<float> absorbed;    // [rows][heads][kv_lora_rank + rope]
  std::vector<float> latents;     // [rows][heads][kv_lora_rank]: attention over latents
  std::vector<float> mixed;       // [rows][heads][v]
  std::vector<float> update;      // [rows][hidden]: what a sub-layer adds
  HeadScratch heads;
  std::vector<float> attention_scratch;          // per thread
  std::vector<float> attention_parts;            // [rows][spans]: what states point to
  std::vector<AttentionState> attention_states;  // [rows][spans]

  std::vector<float> index_key;         // [rows][index_head_dim]
  std::vector<float> index_queries;     // [rows][index_heads][index_head_dim]
  std::vector<float> index_weights;     // [rows][index_heads]
  std::vector<float> index_scores;      // per thread or, if rows are fewer, row: [tokens]
  std::vector<float> index_scratch;     // per thread
  std::vector<int32_t> top_scratch;     // per thread
  std::vector<int32_t> selected;        // [rows][index_topk], of the last full layer
  std::vector<int64_t> selected_count;  // [rows]; 0: all visible keys

  std::vector<float> router_scores;   // [rows][experts]
  std::vector<float> router_scratch;  // per thread
  std::vector<Choice> choices;        // [rows][chosen]
  std::vector<float> expert_outputs;  // [rows][chosen][hidden]
  std::vector<float> guess_state;     // [rows][hidden]: what the next layer's router may see
  std::vector<float> guess_scores;    // [rows][experts]
  std::vector<Choice> guess_choices;  // [rows][chosen]
  ActivationRows guess_rows;
  WorkList works;
  std::vector<Guess> guesses;  // of the next layer's experts
  ExpertStepScratch experts;

  std::vector<float> draft_input;  // [rows][2 * hidden]
  ActivationRows draft_rows;
  std::vector<float> final_hidden;  // [rows][hidden]: after the last norm
  std::vector<int64_t> wanted;      // rows that want logits
  std::vector<float> logits;        // [wanted rows][vocabulary]

  std::vector<uint32_t> positions;  // [rows]: for observers of the routing
  std::vector<uint16_t> routed;     // [rows][chosen]: likewise
};

// What they take at most. `experts_are_quantised`: the routed ones.
ScratchSizes scratch_sizes(const CheckpointConfig& config, bool experts_are_quantised,
                           bool with_draft);

}  // namespace glmd
