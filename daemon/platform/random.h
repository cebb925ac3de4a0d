// Random numbers that can be replayed. The counter-based generator answers "draw number i of seed
// s" without a state, so that what a request draws depends on nothing but its seed and the place in
// its text.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstdint>

#include "platform/check.h"

namespace glmd {

// Philox 4x32 with 10 rounds (Salmon et al., 2011): 64 bits of draw `index` of the stream `seed`.
inline uint64_t philox_bits(uint64_t seed, uint64_t index) {
  std::array<uint32_t, 4> counter = {static_cast<uint32_t>(index),
                                     static_cast<uint32_t>(index >> 32), 0, 0};
  std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{0xD2511F53} * counter[0];
    const uint64_t odd = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
               static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(even)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return uint64_t{counter[1]} << 32 | counter[0];
}

// [0, 1), in steps of 2^-53.
inline double unit_interval(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// A small sequential generator: hashes, tests, backoff.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t bits = state_;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
  }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

// From the operating system; for seeds nobody chose.
inline uint64_t random_seed() {
  uint64_t seed = 0;
  CHECK(getrandom(&seed, sizeof seed, 0) == static_cast<ssize_t>(sizeof seed));
  return seed;
}

}  // namespace glmd
