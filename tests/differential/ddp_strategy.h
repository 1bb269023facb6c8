#pragma once

#include <memory>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/differential/strategy.h"

namespace lockstep::differential {

/// DistributedDataParallel on a rank.
class DdpStrategy : public Strategy {
 public:
  DdpStrategy(std::shared_ptr<InterpretedModule> module, const World& world);

  Step backward(const Batch& batch) override;
  c10::IValue forward(const Batch& batch) override;
  Batch own_part(const Batch& batch) const override;

 private:
  World world_;
  DistributedDataParallel<InterpretedModule> model_;
};

}  // namespace lockstep::differential
