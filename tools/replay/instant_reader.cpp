#include "tools/replay/instant_reader.h"

namespace glmd {

std::vector<int32_t> run_step(ExpertCache& cache, ExpertRange layer,
                              std::span<const ExpertWant> wants, Pace pace) {
  cache.begin_step(layer, wants, pace);
  std::vector<ExpertLease> hits;
  std::vector<int32_t> missing;
  for (const ExpertWant& want : wants) {
    std::optional<ExpertLease> lease = cache.find(want.expert);
    if (lease) {
      hits.push_back(std::move(*lease));
    } else {
      missing.push_back(want.expert);
    }
  }
  for (const int32_t expert : missing) {
    while (!cache.start_load(expert)) {
      if (hits.empty()) cache.wait_for_arrival();
      hits.clear();  // they are computed before anybody waits
    }
  }
  cache.drain();
  return missing;
}

}  // namespace glmd
