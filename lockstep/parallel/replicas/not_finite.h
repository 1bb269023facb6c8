#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

/// Returns where a NaN or an infinity is seen first, in words for a message:
/// in the batch's inputs, its target, a parameter, a parameter's .grad (in the
/// order of registration), in `gradient`, which names a gradient that is
/// elsewhere, or, when all of these are finite, in the loss itself. "parameter
/// 'fc.weight' (nan in 3 of 5120 elements)".
std::string first_not_finite(const std::vector<c10::IValue>& inputs,
                             const c10::IValue& target,
                             const ModuleHandle& module,
                             const std::string& gradient = "");

/// Limits the norm of the gradients as torch::nn::utils::clip_grad_norm_()
/// does. If the norm is not finite, which `result` then says, the gradients
/// stay as they are. `result` also gets the norm.
void clip_grad_norm(const std::vector<torch::Tensor>& parameters,
                    const ModuleHandle& module, double max_norm,
                    StepResult& result);

/// Returns whether this rank is the one that reports a loss that is not finite:
/// the first one that has a shard with such a loss.
bool reports_loss(const ReplicaGroup& group, const StepTotals& totals);

/// Warns about the first step of `group` that is not finite, if this rank
/// `reports` it. An overflow under TrainStepOptions::loss_scale is expected and
/// not reported.
void warn_not_finite(ReplicaGroup& group, const TrainStepOptions& options,
                     const StepResult& result, bool reports);

}  // namespace lockstep
