#pragma once

#include <memory>

#include "lockstep/parallel/data_parallel.h"
#include "tests/differential/wrapped_strategy.h"

namespace lockstep::differential {

/// DataParallel on some devices, alone or as a rank of a world.
class DataParallelStrategy
    : public WrappedStrategy<DataParallel<InterpretedModule>> {
 public:
  DataParallelStrategy(const std::shared_ptr<InterpretedModule>& module,
                       int64_t devices, const ProcessGroup& world = {});
};

}  // namespace lockstep::differential
