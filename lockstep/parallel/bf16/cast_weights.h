#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/bf16/cast_copies.h"
#include "lockstep/parallel/step/step_attachment.h"

namespace lockstep {

/// Makes steps under autocast on the CPU faster.
///
/// Under autocast, each shard casts all weights in each step, and its backward
/// casts their gradients back. If a parameter is used only by that cast, the
/// cast and the leaf can trade places: the replicas of all shards have one
/// copy of the parameter in bfloat16 as their leaf, and the update of the
/// parameter writes the copy while the block is in the cache. Gradients then
/// arrive in the smaller type, and are converted when they are summed. All of
/// this gives the bits of autocast.
///
/// Before the first step with an optimizer, and before the steps 2, 4, 8, ...
/// as long as autocast is off, this class scans the graph of a shard
/// (are_cast_once()), makes the copies, and compares a shard that uses them
/// with one of the module itself. If they have the same bits on all ranks, all
/// steps that can use the copies do.
class CastWeights final : public StepAttachment {
 public:
  void before_step(const StepContext& step) override;
  void before_block(size_t p, const optim::Block& block) override;
  void after_block(size_t p, const optim::Block& block) override;
  void after_update(const std::vector<bool>& is_updated) override;
  void on_written() override { copies_.invalidate(); }
  void on_rebuild() override;

 private:
  enum class State {
    kUnknown,  ///< no graph was scanned yet
    kInUse,
    kOff,  ///< there is nothing to copy, or the copies gave other bits
  };

  /// Makes the copies if all ranks can use them, and tries them. Collective.
  void decide(const StepContext& step);
  /// Compares a shard that is computed with the copies with one of the module.
  static bool have_bits_of_module(const StepContext& step);
  /// Writes the copies again if a parameter was changed since the last step.
  /// Collective if ranks share memory.
  void refresh(const StepContext& step);
  void write(const StepContext& step);

  State state_ = State::kUnknown;
  int64_t steps_ = 0;  // with an optimizer, in state kUnknown
  int64_t build_ = 0;  // of the replicas
  CastCopies copies_;
  // The step whose update checks and writes the copies.
  const StepContext* step_ = nullptr;
  // 1 + index of a parameter with another value than its copy, or 0.
  std::atomic<size_t> outdated_ = 0;
};

}  // namespace lockstep
