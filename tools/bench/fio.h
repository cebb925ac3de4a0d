// fio, the tool that disks are measured with: what the device gives to random direct reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/result.h"

namespace glmd {

struct FioJob {
  std::string path;
  int64_t block_bytes = 0;
  int depth = 1;
  int64_t run_length = 1;  // blocks in a row before the next random place
  double seconds = 1;
  bool aligns_buffers = false;  // so that they get huge pages, as ours do
};

bool has_fio();
// Bytes per second of direct reads at random places.
Result<double> run_fio(const FioJob& job);

}  // namespace glmd
