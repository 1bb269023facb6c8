#pragma once

#include <memory>

#include "lockstep/parallel/data_parallel.h"
#include "tests/differential/wrapped_strategy.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::differential {

/// DataParallel on some devices.
class DataParallelStrategy
    : public WrappedStrategy<DataParallel<InterpretedModule>> {
 public:
  DataParallelStrategy(const std::shared_ptr<InterpretedModule>& module,
                       int64_t devices);
};

/// A rank of several devices, as in a training run.
class RankStrategy : public WrappedStrategy<OverRanks<InterpretedModule>> {
 public:
  RankStrategy(const std::shared_ptr<InterpretedModule>& module,
               int64_t devices, const ProcessGroup& world);
};

}  // namespace lockstep::differential
