#include "model/sequence_state.h"

#include <algorithm>
#include <cstring>

namespace glmd {

void store_row(const KernelTable& kernels, const CacheRow& row, const float* values, uint8_t* to) {
  auto* scales = reinterpret_cast<float*>(to + padded_columns(row.coded));
  for (int64_t i = 0; i < row.coded; i += group_columns) {
    const int64_t n = std::min(group_columns, row.coded - i);
    int32_t sum;  // no dot is made of these codes
    kernels.quantise(values + i, n, 1, n, reinterpret_cast<int8_t*>(to) + i,
                     scales + i / group_columns, &sum);
  }
  const float* others = values + row.coded;
  const int64_t n = row.width - row.coded;
  if (row.is_f32) {
    std::memcpy(to + row.coded_bytes(), others, static_cast<size_t>(n) * sizeof(float));
  } else {
    kernels.to_f16(others, n, reinterpret_cast<uint16_t*>(to + row.coded_bytes()));
  }
}

Result<CachePool> CachePool::create(CacheLayout layout, int64_t bytes) {
  CachePool pool;
  pool.layout_ = std::move(layout);
  const int64_t block_bytes = pool.layout_.block_bytes();
  const int64_t count = bytes / block_bytes;
  if (count < 1) {
    return error(ErrorKind::no_memory,
                 "KV pool: wanted at least {} bytes for one block of {} tokens, got {}",
                 block_bytes, cache_block_tokens, bytes);
  }
  pool.memory_ = TRY(AlignedMemory::allocate(count * block_bytes));
  for (int64_t i = count; i-- > 0;) pool.free_.push_back(pool.memory_.data() + i * block_bytes);
  return pool;
}

Result<std::vector<uint8_t*>> CachePool::take(int64_t count) {
  if (count > static_cast<int64_t>(free_.size())) {
    return error(ErrorKind::no_memory, "KV pool: wanted room for {} tokens, {} are free",
                 count * cache_block_tokens, free_tokens());
  }
  std::vector<uint8_t*> blocks(free_.end() - count, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(count));
  return blocks;
}

void CachePool::give_back(const std::vector<uint8_t*>& blocks) {
  free_.insert(free_.end(), blocks.begin(), blocks.end());
}

Result<std::unique_ptr<GlmSequence>> GlmSequence::create(CachePool& pool, int64_t tokens_max) {
  std::unique_ptr<GlmSequence> sequence(new GlmSequence(pool));
  sequence->blocks_ = TRY(pool.take((tokens_max + cache_block_tokens - 1) / cache_block_tokens));
  return sequence;
}

GlmSequence::~GlmSequence() {
  pool_.give_back(blocks_);
}

void GlmSequence::truncate(int64_t length) {
  CHECK(length >= 0 && length <= length_);
  length_ = length;
  draft_length_ = std::min(draft_length_, length);
}

CacheView GlmSequence::keys(int64_t layer) const {
  const CacheLayout& layout = pool_.layout();
  return {blocks_.data(), layout.key, layout.keys_offset(layer)};
}

CacheView GlmSequence::index_keys(int64_t layer) const {
  const CacheLayout& layout = pool_.layout();
  return {blocks_.data(), layout.index_key, layout.index_offset(layer)};
}

uint8_t* GlmSequence::key_at(int64_t layer, int64_t position) {
  DCHECK(position < tokens_max());
  const CacheLayout& layout = pool_.layout();
  return blocks_[position / cache_block_tokens] + layout.keys_offset(layer) +
         position % cache_block_tokens * layout.key.bytes();
}

uint8_t* GlmSequence::index_key_at(int64_t layer, int64_t position) {
  DCHECK(position < tokens_max());
  const CacheLayout& layout = pool_.layout();
  return blocks_[position / cache_block_tokens] + layout.index_offset(layer) +
         position % cache_block_tokens * layout.index_key.bytes();
}

}  // namespace glmd
