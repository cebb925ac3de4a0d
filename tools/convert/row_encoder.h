// Rows of float32, wherever they come from, encoded by a team: each thread reads some rows, checks
// that they can be stored, encodes them as a matrix of their own and puts that in its place.
// Memory: a few hundred KB for each thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "platform/parallel.h"
#include "platform/result.h"

namespace glmd {

// A matrix to encode, or gate and up side by side.
struct RowSource {
  std::string where;  // opens messages
  int64_t rows = 0, columns = 0;
  int parts = 1;  // 2: gate and up
  bool is_embedding = false;
  // Rows [begin, end) of a part as float32 to `out`; `raw` is room to use. Thread: any.
  std::function<Result<void>(int part, int64_t begin, int64_t end, std::vector<uint8_t>& raw,
                             float* out)>
      read;

  int64_t bytes(BlockFormat format, int64_t row_count) const;
};

// "WHERE: row 3: wanted finite values of a storable size, …"
Error bad_value(const std::string& where, int64_t row);

// So many whole tiles of rows, at least one, that they have about `elements`.
int64_t rows_holding(int64_t elements, int64_t columns);

class RowEncoder {
 public:
  RowEncoder(Team& team, const KernelTable& kernels)
      : team_(team), kernels_(kernels), scratch_(static_cast<size_t>(team.thread_count())) {}

  // Rows [first, last), as a matrix of last - first rows, to `out`. An error is that of the lowest
  // row which has one.
  Result<void> encode(BlockFormat format, const RowSource& source, int64_t first, int64_t last,
                      uint8_t* out);

 private:
  struct Scratch {
    std::vector<uint8_t> raw, encoded;
    std::vector<float> values;
  };
  struct Failure;
  bool encode_chunk(BlockFormat format, const RowSource& source, int64_t begin, int64_t end,
                    Scratch& scratch, Failure& failure) const;
  bool read_chunk(BlockFormat format, const RowSource& source, int64_t begin, int64_t end,
                  Scratch& scratch, Failure& failure) const;

  Team& team_;
  const KernelTable& kernels_;
  std::vector<Scratch> scratch_;  // one for each thread
};

}  // namespace glmd
