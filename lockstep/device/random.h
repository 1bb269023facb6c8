#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Generator.h>

namespace lockstep {

/// Mixes its arguments into one well-distributed 64-bit value (SplitMix64).
uint64_t mix_seed(uint64_t a, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0);

/// State of a thread's random number generators on the CPU and, if in use, on
/// its current GPU.
class RandomState {
 public:
  /// Returns the state of the calling thread: that of its RandomScope, or else
  /// that of LibTorch's default generator.
  static RandomState from_thread();

 private:
  friend class RandomScope;
  at::Generator cpu_;
  at::Generator accelerator_;  // undefined: not in use
};

/// While a scope exists, random operators that this thread calls without a
/// generator (dropout, rand, normal_ ...) draw from a separate stream, seeded
/// by (seed, step, shard, phase). LibTorch's default generator is shared by all
/// threads, so the numbers that a replica drew from it would depend on the
/// other replicas. Scopes nest. A scope must end on its own thread. Other
/// threads are not affected, except through a GPU's only default generator,
/// which is seeded if the thread's current device is in use. Its state is
/// restored at the end. Workers that share a GPU share that generator.
class RandomScope {
 public:
  RandomScope(uint64_t seed, uint64_t step, uint64_t shard, uint64_t phase = 0);
  /// Repeats the random numbers that were drawn after `state` was taken.
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
