#pragma once

#include <cstdint>

namespace lockstep {

/// Mixes its arguments into one well-distributed 64-bit value (SplitMix64).
uint64_t mix_seed(uint64_t a, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0);

/// While it lives, random operators that this thread calls without a
/// generator (dropout, rand, normal_ ...) draw from a stream of their own,
/// seeded by (seed, step, shard). LibTorch's default generator is shared by
/// all threads, so what a replica drew from it would depend on the others.
/// On CUDA the same holds for the current device's default generator.
class RandomScope {
 public:
  RandomScope(uint64_t seed, uint64_t step, uint64_t shard);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  struct State;
  State* state_;
};

}  // namespace lockstep
