#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Generator.h>

namespace lockstep {

/// Mixes its arguments into one well-distributed 64-bit value (SplitMix64).
uint64_t mix_seed(uint64_t a, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0);

/// Where the random numbers of a thread stand, on the CPU and on its current
/// GPU if that is in use.
class RandomState {
 public:
  /// Of the calling thread: of its RandomScope, else of LibTorch's default
  /// generator.
  static RandomState of_thread();

 private:
  friend class RandomScope;
  at::Generator cpu_;
  at::Generator gpu_;  // undefined: not in use
};

/// While it lives, random operators that this thread calls without a
/// generator (dropout, rand, normal_ ...) draw from a stream of their own,
/// seeded by (seed, step, shard, phase). LibTorch's default generator is shared
/// by all threads, so what a replica drew from it would depend on the others.
/// Scopes nest. It must end on its thread; other threads are not affected,
/// except that a GPU has one default generator, which is seeded if the
/// thread's current device is in use.
class RandomScope {
 public:
  RandomScope(uint64_t seed, uint64_t step, uint64_t shard, uint64_t phase = 0);
  /// Draws what was drawn from `state` on. Leaves the GPU's generator as it is
  /// found.
  explicit RandomScope(const RandomState& state);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  struct State;
  void enter(at::Generator generator);

  std::unique_ptr<State> state_;
};

}  // namespace lockstep
