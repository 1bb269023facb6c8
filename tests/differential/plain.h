#pragma once

#include <vector>

#include "tests/differential/strategy.h"

namespace lockstep::differential {

/// The oracle: LibTorch alone, on one device, in one thread. A batch is run
/// whole; where samples influence each other (BatchNorm), or shards don't enter
/// by their samples, shard after shard, with the weight that each has. What
/// no_sync() keeps for later is added at once.
class Plain : public Strategy {
 public:
  using Strategy::Strategy;

  c10::IValue forward(const Batch& batch) override;
  Step backward(const Batch& batch, const std::string& loss) override;
  Step train_step(const Batch& batch, const std::string& loss,
                  AnyOptimizer* optimizer, const StepOptions& options) override;

 private:
  struct Shard {
    Batch batch;
    double weight;
  };
  std::vector<Shard> shards_of(const Batch& batch) const;
  /// The parts of the ranks, in a loop of the user's own.
  std::vector<Shard> rank_parts_of(const Batch& batch) const;
  /// Runs the shards; each starts from the same buffers, and those of the
  /// first are kept.
  std::vector<c10::IValue> forward_shards(const std::vector<Shard>& shards);
  /// The gradients of the loss of the whole output.
  Step backward_whole(const Batch& batch, const std::string& loss,
                      double total_weight = 0);
  /// The gradients of the weighted sum of the shards' losses.
  Step backward_shards(const std::vector<Shard>& shards,
                       const std::string& loss);
};

}  // namespace lockstep::differential
