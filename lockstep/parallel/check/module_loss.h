#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/losses/weighted_loss.h"
#include "lockstep/parallel/check/loss_check.h"
#include "lockstep/parallel/group/data_parallel_options.h"

namespace lockstep {

/// A module that returns its loss instead of an output for each sample. With
/// the loss function, it is a loss function of its inputs, which can be checked
/// like any other: a few samples together, and each of them separately.
///
/// The module runs in evaluation mode, so that dropout does not make each loss
/// a different one, and without gradients. Its inputs, buffers and mode are
/// left as they were.
class ModuleLoss {
 public:
  /// Returns whether the module returned a scalar for some samples.
  static bool is_in(const ComputedShards& shards);

  /// Computes the loss of the first samples of `shards`, in the thread of its
  /// device. Throws what the module and the loss function throw, and
  /// ParallelError if an input or the target is shared().
  explicit ModuleLoss(const ComputedShards& shards);
  ModuleLoss(const ModuleLoss&) = delete;
  ModuleLoss& operator=(const ModuleLoss&) = delete;

  /// Returns the samples as one shard. Its output is the module's input.
  ComputedShards shards() const;

 private:
  WeightedLoss call(const c10::IValue& inputs, const c10::IValue& target) const;

  const ComputedShards& computed_;
  ShardLoss loss_;
  c10::IValue target_;
  std::vector<ShardPass> passes_;
  std::vector<c10::IValue> outputs_;
  std::vector<int64_t> samples_;
};

}  // namespace lockstep
