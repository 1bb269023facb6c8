#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

namespace lockstep::data {

/// The purpose of a stream. Streams with different purposes share no numbers.
enum class StreamUse : uint64_t {
  kSynthetic,
  kOrder,
  kAugmentation,
  kTokenShift,
  kSampling,
};

/// Makes random numbers from a key with integer arithmetic only, so they are
/// the same on every machine (SplitMix64, Steele, Lea and Flood, OOPSLA 2014).
class RandomStream {
 public:
  RandomStream(StreamUse use, std::initializer_list<uint64_t> key)
      : state_(mix(static_cast<uint64_t>(use) + kGamma)) {
    for (const uint64_t part : key) state_ = mix(state_ ^ mix(part + kGamma));
  }

  uint64_t next() { return mix(state_ += kGamma); }
  /// Returns a number in 0..n-1.
  int64_t below(int64_t n) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n);
    return static_cast<int64_t>(product >> 64);
  }
  /// Returns a number in low..high, both included.
  int64_t between(int64_t low, int64_t high) {
    return low + below(high - low + 1);
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

/// Returns the order of `size` samples in an epoch: that of their numbers, or
/// if `shuffles`, one that depends on (seed, epoch) (Fisher and Yates).
inline std::vector<int64_t> epoch_order(int64_t size, bool shuffles,
                                        uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffles) return order;
  RandomStream random(StreamUse::kOrder, {seed, static_cast<uint64_t>(epoch)});
  for (int64_t left = size; left > 1; --left) {
    const int64_t taken = random.below(left);
    std::swap(order[static_cast<std::size_t>(left - 1)],
              order[static_cast<std::size_t>(taken)]);
  }
  return order;
}

}  // namespace lockstep::data
