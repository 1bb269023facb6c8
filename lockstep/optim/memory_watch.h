#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "lockstep/device/tensor_checksum.h"

namespace lockstep::optim {

/// Finds memory that changes between two steps. A block is sealed with sums
/// after its update, and compared before the next one. Not every write of a
/// program increments a version. So a change of more than one bit in a sample
/// of the elements counts as its write, and so does any change but a single bit
/// in what it may write to at any time.
///
/// The sums take at most about kShare of the time of a step: each step seals
/// as many of the blocks as that allows, in turns. A model whose steps are long
/// compared with its parameters has all of them sealed in every step.
///
/// begin_step() is called by one thread, and the other functions by any thread,
/// each for another block.
class MemoryWatch {
 public:
  /// Share of the time of a step.
  static constexpr double kShare = 0.005;
  /// Each block is sealed at least once in so many steps.
  static constexpr size_t kTurns = 64;
  /// Fingerprints of a block.
  struct Print {
    uint64_t sum = 0;  ///< of all words
    /// Bits of a few elements, many of which a write changes.
    SampledBits sample{};
    /// Sum of the words that the program may write to at any time.
    uint64_t writable_sum = 0;
  };
  using Measure = c10::function_ref<Print()>;

  /// Starts with `blocks` that are not sealed. `all`: each step seals all of
  /// them, however long that takes.
  void start(size_t blocks, bool all = false);
  /// Ends the watch.
  void stop() { seals_.clear(); }
  bool is_on() const { return !seals_.empty(); }

  /// Starts a step: chooses the blocks that it seals.
  void begin_step();
  /// Breaks the seal of a block, because the program wrote to it.
  void forget(size_t block) { seals_[block].reset(); }
  /// Breaks the seal of a block. Returns false if its memory has changed and
  /// the program has not written to it.
  bool unseal(size_t block, Measure measure);
  /// Seals a block if it is its turn.
  void seal(size_t block, Measure measure);

 private:
  using Clock = std::chrono::steady_clock;

  Print timed(Measure measure);

  std::vector<std::optional<Print>> seals_;  // by block
  // A step seals `count_` blocks from `first_` on. After the last block comes
  // the first one.
  bool seals_all_ = false;
  size_t first_ = 0;
  size_t count_ = 0;
  Clock::time_point begin_;
  std::atomic<int64_t> sums_ns_ = 0;  // in this step
};

}  // namespace lockstep::optim
