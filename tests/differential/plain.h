#pragma once

#include <vector>

#include "tests/differential/strategy.h"

namespace lockstep::differential {

/// The oracle: LibTorch alone, on one device, in one thread. A batch is run
/// whole; where samples influence each other (BatchNorm), or shards don't enter
/// by their samples, shard after shard, with the weight that each has.
class Plain : public Strategy {
 public:
  using Strategy::Strategy;

  Step backward(const Batch& batch) override;
  c10::IValue forward(const Batch& batch) override;

 private:
  struct Shard {
    Batch batch;
    double weight;
  };
  std::vector<Shard> shards_of(const Batch& batch);
  /// Runs the shards; each starts from the same buffers, and those of the
  /// first are kept.
  std::vector<c10::IValue> forward_shards(const std::vector<Shard>& shards);
};

}  // namespace lockstep::differential
