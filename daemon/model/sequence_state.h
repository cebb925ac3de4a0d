// The caches of one sequence: latent and rotary keys of every layer, index keys of the layers that
// own an indexer. Memory comes from one pool in blocks of 64 tokens; a block holds all layers, so
// that a prefix is a list of blocks. Thread: compute.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "model/model.h"
#include "platform/aligned_memory.h"

namespace glmd {

struct CacheLayout {
  int64_t layers = 0;  // draft layer included where it is used
  CacheRow key;        // latent, then rope
  CacheRow index_key;
  std::vector<int64_t> index_slot;  // per layer: place among the index caches, or -1
  int64_t index_layers = 0;

  int64_t bytes_per_token() const {
    return layers * key.bytes() + index_layers * index_key.bytes();
  }
  int64_t block_bytes() const { return bytes_per_token() * cache_block_tokens; }
  int64_t keys_offset(int64_t layer) const { return layer * key.bytes() * cache_block_tokens; }
  int64_t index_offset(int64_t layer) const {
    return (layers * key.bytes() + index_slot[layer] * index_key.bytes()) * cache_block_tokens;
  }
};

// Writes the values of one token, as a CacheView reads them.
void store_row(const KernelTable& kernels, const CacheRow& row, const float* values, uint8_t* to);

class CachePool {
 public:
  static Result<CachePool> create(CacheLayout layout, int64_t bytes);

  const CacheLayout& layout() const { return layout_; }
  int64_t free_tokens() const { return static_cast<int64_t>(free_.size()) * cache_block_tokens; }
  // `count` blocks, or none and no_memory.
  Result<std::vector<uint8_t*>> take(int64_t count);
  void give_back(const std::vector<uint8_t*>& blocks);

 private:
  CacheLayout layout_;
  AlignedMemory memory_;
  std::vector<uint8_t*> free_;
};

class GlmSequence : public SequenceState {
 public:
  static Result<std::unique_ptr<GlmSequence>> create(CachePool& pool, int64_t tokens_max);
  ~GlmSequence() override;

  int64_t length() const override { return length_; }
  void truncate(int64_t length) override;

  int64_t tokens_max() const { return static_cast<int64_t>(blocks_.size()) * cache_block_tokens; }
  int64_t draft_length() const { return draft_length_; }
  void extend(int64_t tokens) { length_ += tokens; }
  void extend_draft(int64_t tokens) { draft_length_ += tokens; }

  // One layer's keys.
  CacheView keys(int64_t layer) const;
  CacheView index_keys(int64_t layer) const;
  uint8_t* key_at(int64_t layer, int64_t position);
  uint8_t* index_key_at(int64_t layer, int64_t position);

 private:
  explicit GlmSequence(CachePool& pool) : pool_(pool) {}
  CachePool& pool_;
  std::vector<uint8_t*> blocks_;
  int64_t length_ = 0, draft_length_ = 0;
};

}  // namespace glmd
