// Random weights in stored form, at the speed of a copy: a few thousand blocks of each format are
// encoded from bell-shaped values, and a tensor is a sequence of them drawn by its name and a seed.
// Row scales are drawn apart, so rows differ in size too. Values have the standard deviation
// 1 / sqrt(columns) (embeddings 1), so that what a layer computes keeps its size; norms lie around
// 1, biases around 0.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "platform/parallel.h"
#include "tools/convert/conversion_plan.h"

namespace glmd {

class RandomWeights {
 public:
  RandomWeights(uint64_t seed, Team& team) : seed_(seed), team_(team) {}

  // A run of equal units: whole blocks, scales, or float values.
  struct Pool {
    int64_t unit_bytes = 0;
    std::vector<uint8_t> units;
    float row_scale = 0;  // of the matrix the blocks were encoded in
    int64_t count() const { return static_cast<int64_t>(units.size()) / unit_bytes; }
  };
  // Consecutive bytes of a tensor, drawn from one pool; zeros where there is none.
  struct Segment {
    int64_t bytes = 0;  // the last unit may be cut off
    const Pool* pool = nullptr;
    uint64_t key = 0;
  };

  // What the tensor consists of, in order; the sum is its size. Pools are made on first use.
  std::vector<Segment> segments(const PlannedTensor& tensor);
  // Bytes [begin, begin + out) of a segment; `begin` is a multiple of its band_bytes(). The bytes
  // depend on neither threads nor the cut.
  void fill(const Segment& segment, int64_t begin, std::span<uint8_t> out);
  static int64_t band_bytes(const Segment& segment);

 private:
  static constexpr int64_t around_1 = 0, around_0 = -1;
  struct PoolKey {
    BlockFormat format;
    bool is_embedding;  // row-major
    int64_t columns;    // sets the deviation; around_1, around_0: elements of a vector
    auto operator<=>(const PoolKey&) const = default;
  };
  const Pool& pool(const PoolKey& key);
  const Pool& scale_pool(BlockFormat format, int64_t columns);
  void add_matrix(BlockFormat format, int64_t rows, int64_t columns, int parts,
                  std::vector<Segment>& out);
  void add(int64_t bytes, const Pool& pool, std::vector<Segment>& out) const;

  const uint64_t seed_;
  Team& team_;
  uint64_t tensor_key_ = 0;
  std::map<PoolKey, Pool> pools_;
  std::map<std::pair<BlockFormat, int64_t>, Pool> scale_pools_;
};

}  // namespace glmd
