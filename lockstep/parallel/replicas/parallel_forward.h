#pragma once

#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

/// Scatter, parallel forward, gather, with the replicas of `group`, which the
/// result keeps. Under autograd the result has one node, whose backward runs
/// the replicas' backwards in their threads and hands the sums over this rank's
/// shards to the original's parameters.
c10::IValue parallel_forward(const std::shared_ptr<ReplicaGroup>& group,
                             const std::vector<c10::IValue>& inputs);

}  // namespace lockstep
