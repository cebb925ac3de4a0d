#include "model/rotary.h"

#include <cmath>

namespace glmd {

SineCosine sine_cosine(double angle) {
  // angle = k * pi/2 + r with |r| <= pi/4; pi/2 in two parts keeps r exact to 2^-60 for angles of
  // 2^20.
  constexpr double half_pi_high = 1.5707963267948966;
  constexpr double half_pi_low = 6.123233995736766e-17;
  const double k = std::nearbyint(angle / half_pi_high);
  double r = std::fma(-k, half_pi_high, angle);
  r = std::fma(-k, half_pi_low, r);
  const double r2 = r * r;
  double sine = 0, cosine = 0;  // Taylor, Horner from the smallest term
  for (int n = 19; n >= 3; n -= 2) sine = (sine + 1) * (-r2 / (n * (n - 1)));
  sine = r * (1 + sine);
  for (int n = 18; n >= 2; n -= 2) cosine = (cosine + 1) * (-r2 / (n * (n - 1)));
  cosine = 1 + cosine;
  switch (static_cast<int64_t>(k) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

Rotary::Rotary(double theta, int64_t width) : frequencies_(static_cast<size_t>(width / 2)) {
  for (size_t j = 0; j < frequencies_.size(); ++j) {
    const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(width);
    frequencies_[j] = 1.0F / static_cast<float>(std::pow(theta, exponent));
  }
}

void Rotary::fill(int64_t position, float* cos, float* sin) const {
  for (size_t j = 0; j < frequencies_.size(); ++j) {
    // The reference multiplies in float32; so does the model in training.
    const float angle = static_cast<float>(position) * frequencies_[j];
    const SineCosine value = sine_cosine(static_cast<double>(angle));
    cos[j] = static_cast<float>(value.cosine);
    sin[j] = static_cast<float>(value.sine);
  }
}

}  // namespace glmd
