// Reads of expert bytes: submitted by the compute thread, done by others, handed over here and
// nowhere else.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/result.h"

namespace glmd {

struct ReadRequest {
  int32_t file = 0;    // index the reader was made with
  int64_t offset = 0;  // multiples of 4096: one direct read
  int64_t bytes = 0;
  uint8_t* target = nullptr;  // 4096-aligned, stays valid until the completion
  uint64_t tag = 0;           // given back
};

struct ReadCompletion {
  uint64_t tag = 0;
  Result<void> result;  // names file, offset, wanted and got
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;
  virtual void submit(const ReadRequest& request) = 0;  // thread: compute
  // The next completion, waiting for it. Only while one is outstanding. Thread: compute.
  virtual ReadCompletion wait() = 0;
  virtual int64_t outstanding() const = 0;
};

}  // namespace glmd
