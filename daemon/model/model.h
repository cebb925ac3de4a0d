// One family of models, seen from generation/: sequences that hold state, and passes that move them
// on by a batch of rows, layer by layer. Thread: compute.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experts/expert_cache.h"
#include "platform/result.h"

namespace glmd {

struct ModelShape {
  int64_t vocabulary = 0;
  int64_t layers = 0;
  int64_t context_max = 0;  // positions the checkpoint was made for
  int64_t cache_bytes_per_token = 0;
};

// The state of one sequence: caches of every layer. Rows of a pass extend it provisionally; commit
// makes them stay.
class SequenceState {
 public:
  virtual ~SequenceState() = default;
  virtual int64_t length() const = 0;         // committed tokens
  virtual void truncate(int64_t length) = 0;  // to fewer committed tokens
};

// Consecutive tokens of one sequence; they follow its committed ones. The tokens are looked at when
// the pass begins.
struct BatchPart {
  SequenceState* sequence = nullptr;
  std::span<const int32_t> tokens;
  bool wants_logits = false;      // of the last token
  bool wants_all_logits = false;  // of every token
};

// One pass of a batch through the model. Between layers the caller may drop parts (cancelled
// requests) or run another pass on other sequences. Ending an unfinished pass commits nothing.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;
  virtual bool is_done() const = 0;
  virtual int64_t layers_done() const = 0;
  // The next layer for all parts that are left. An error leaves every sequence as it was before the
  // pass.
  virtual Result<void> run_layer() = 0;
  // At any time before commit(); the part's sequence is not touched any more and may be destroyed.
  virtual void drop(int64_t part) = 0;
  // After is_done(): the parts' tokens become part of their sequences.
  virtual void commit() = 0;
  // After is_done(): [rows that want logits][vocabulary] of that part; valid until the pass ends.
  virtual std::span<const float> logits(int64_t part) const = 0;
  // After is_done(): [tokens][hidden] of that part after the last norm: what the draft layer starts
  // from.
  virtual std::span<const float> hidden(int64_t) const { return {}; }

 protected:
  friend struct EndPass;
  // Nobody uses it any more: a model may keep it for its next pass.
  virtual void end() { delete this; }
};

struct EndPass {
  void operator()(ForwardPass* pass) const { pass->end(); }
};
using PassPtr = std::unique_ptr<ForwardPass, EndPass>;  // ends before its model

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;
  // Fails with no_memory where the pool has no room for `tokens_max` tokens.
  virtual Result<std::unique_ptr<SequenceState>> new_sequence(int64_t tokens_max) = 0;
  virtual Result<PassPtr> begin(std::span<const BatchPart> parts) = 0;
  virtual int64_t rows_max() const = 0;  // of one pass
  // The draft layer over rows that follow the sequence's drafted ones: row p has token p + 1 and
  // the hidden state of token p, and its logits predict token p + 2 (multi-token prediction:
  // DeepSeek-V3, 2.2).
  virtual Result<PassPtr> begin_draft(SequenceState& sequence, std::span<const int32_t> tokens,
                                      std::span<const float> hidden);
  virtual ExpertCacheStats expert_stats() const { return {}; }
  // Time spent in output heads so far.
  virtual double head_seconds() const { return 0; }
  // Between layers: the bytes that experts may take from now on. Returns what they take, which is
  // more than wanted while reads are under way or below the floor.
  virtual int64_t resize_experts(int64_t arena_bytes) { return arena_bytes; }
  // While nobody asks for anything: reads experts that are likely to be wanted, for the length of
  // one read. False where nothing is left to read.
  virtual bool warm_up() { return false; }
  // To be called once a second while a pass has nothing but reads of experts to wait for.
  virtual void set_while_waiting(std::function<void()> /*call*/) {}
  // The read of experts that a disk has not answered for the longest time.
  virtual std::optional<PendingRead> oldest_pending_read() const { return std::nullopt; }
  virtual bool has_locked_weights() const { return false; }  // the dense ones cannot be paged out
  // Whether experts are read ahead of the router now: "on", "off", or "trying" which is faster.
  // Empty: no such thing.
  virtual std::string_view look_ahead_state() const { return {}; }
  // What happened to disks since the last call, each a line for the log.
  virtual std::vector<std::string> take_disk_events() { return {}; }
  virtual std::vector<DiskStatus> disks() const { return {}; }
  virtual std::string reader_description() const {
    return {};
  }  // how experts are read; for the log
};

}  // namespace glmd
