// A small, fast, reproducible random source (SplitMix64, Steele et al. 2014): the same seed gives
// the same numbers on every machine. Not for secrets.
#ifndef TERRACE_BASE_RANDOM_H_
#define TERRACE_BASE_RANDOM_H_

#include <cstdint>

namespace terrace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound); `bound` > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // Uniform in [0, 1) with 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Uniform in [-1, 1).
  float Signed() { return static_cast<float>(Uniform() * 2 - 1); }

 private:
  uint64_t state_;
};

}  // namespace terrace

#endif  // TERRACE_BASE_RANDOM_H_
