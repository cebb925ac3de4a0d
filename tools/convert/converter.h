// A checkpoint becomes a container: written into TARGET.partial, file by file, and renamed to
// TARGET when whole. Finished files are kept when a conversion is broken off; the next one goes on
// after them, if sources and options are still the same.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "platform/result.h"
#include "tools/convert/conversion_plan.h"

namespace glmd {

struct ConvertOptions {
  std::string source;
  std::string target;
  Policies policies;
  double latent_norm_eps = 1e-5;
  std::vector<std::string> ignored;
  int threads = 1;
  const KernelTable* kernels = find_kernels("auto");  // of any the same bytes come
};

struct ConvertProgress {
  std::string note;  // something to say, or empty: a tensor is done
  std::string file;
  int64_t bytes_done = 0;  // kept files included
  int64_t bytes_kept = 0;  // of an earlier, broken-off conversion
  int64_t bytes_total = 0;
  int64_t weights_done = 0;  // by this run
};

// Called after every tensor; false breaks off, leaving what is done for the next time.
using ConvertObserver = std::function<bool(const ConvertProgress&)>;

Result<void> convert(const ConvertOptions& options, const ConvertObserver& observer);

}  // namespace glmd
