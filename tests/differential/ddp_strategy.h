#pragma once

#include <memory>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/differential/wrapped_strategy.h"

namespace lockstep::differential {

/// DistributedDataParallel on a rank.
class DdpStrategy
    : public WrappedStrategy<DistributedDataParallel<InterpretedModule>> {
 public:
  DdpStrategy(const std::shared_ptr<InterpretedModule>& module,
              const ProcessGroup& world);
};

}  // namespace lockstep::differential
