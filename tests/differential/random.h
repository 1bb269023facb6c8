#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace lockstep::differential {

/// A stream of numbers that is a function of its seed alone, on every
/// platform (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// Returns a number from 0, 1, ..., n - 1.
  int64_t below(int64_t n) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(n));
  }
  /// Returns a number from first, ..., last.
  int64_t between(int64_t first, int64_t last) {
    return first + below(last - first + 1);
  }
  /// True once in `n` times.
  bool once_in(int64_t n) { return below(n) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(below(static_cast<int64_t>(from.size())))];
  }

 private:
  uint64_t state_;
};

/// Random numbers that are not LibTorch's, from 0 to 1: others in each call of
/// the process.
inline double own_random() {
  static std::atomic<uint64_t> calls{0};
  return static_cast<double>(Random(++calls).next() >> 11) * 0x1p-53;
}

}  // namespace lockstep::differential
