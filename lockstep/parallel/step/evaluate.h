#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/group/replica_group.h"

namespace lockstep {

/// Runs the forward of every shard without gradients, and calls `visit` with
/// its output and target in the thread of its device. With several ranks, each
/// passes the samples of its own shards out of `all_samples` (-1: all ranks
/// have as many). Returns the number of samples of each shard of all ranks.
std::vector<int64_t> evaluate(ReplicaGroup& group,
                              const std::vector<c10::IValue>& inputs,
                              const c10::IValue& target, int64_t all_samples,
                              const ShardVisit& visit);

}  // namespace lockstep
