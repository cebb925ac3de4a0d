// Rotary position embedding, frequencies theta^(-2j/width) (RoFormer, arXiv 2104.09864). Sine and
// cosine are our own, so that every machine has the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace glmd {

struct SineCosine {
  double sine, cosine;
};
SineCosine sine_cosine(double angle);

class Rotary {
 public:
  Rotary(double theta, int64_t width);

  int64_t pairs() const { return static_cast<int64_t>(frequencies_.size()); }
  // cos[j], sin[j] for j < pairs().
  void fill(int64_t position, float* cos, float* sin) const;

 private:
  std::vector<float> frequencies_;
};

}  // namespace glmd
