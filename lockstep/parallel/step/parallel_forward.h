#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

/// Scatters the inputs, runs the replicas of `group` in parallel and gathers
/// the outputs. The result keeps the replicas alive. Under autograd the result
/// has a single node. Its backward runs the replicas' backwards in their
/// threads and passes the sums over this rank's shards to the original's
/// parameters. Calls `before` with the batch and the random stream when the
/// replicas can be used.
c10::IValue parallel_forward(
    const std::shared_ptr<ReplicaGroup>& group,
    const std::vector<c10::IValue>& inputs,
    const std::function<void(const StepBatch& batch,
                             const ReplicaGroup::RandomStream& stream)>&
        before);

}  // namespace lockstep
