// A checkpoint becomes a container: which source tensors make each of ours, in which format, file
// by file. Memory is bounded by the largest single tensor. Interrupted conversions go on where they
// were; the target appears whole or not at all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/result.h"

namespace glmd {

enum class Policy { nl4, nl5, q8, exact };

struct ConversionOptions {
  std::string source, target;
  Policy experts = Policy::nl4;
  Policy dense = Policy::nl5;
  double latent_norm_eps = 1e-5;
  std::vector<std::string> ignored;  // glob patterns of source tensors to leave out
  int threads = 1;
  std::function<void(const std::string&)> say;  // progress, one line each
};

Result<void> convert(const ConversionOptions& options);

}  // namespace glmd
