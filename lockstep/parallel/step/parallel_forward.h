#pragma once

#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/step/step_attachment.h"

namespace lockstep {

/// Scatters the inputs, runs the replicas of `group` in parallel and gathers
/// the outputs. The result keeps the replicas alive. Under autograd the result
/// has a single node. Its backward runs the replicas' backwards in their
/// threads and passes the sums over this rank's shards to the original's
/// parameters. Calls before_forward() of the attachments when the replicas can
/// be used.
c10::IValue parallel_forward(const std::shared_ptr<ReplicaGroup>& group,
                             const std::vector<c10::IValue>& inputs,
                             StepAttachments attachments);

}  // namespace lockstep
