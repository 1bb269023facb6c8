#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Returns text for a message that says where a NaN or an infinity occurs
/// first: "parameter 'fc.weight' (nan in 3 of 5120 elements)". Looks at the
/// batch's inputs, its target, the parameters, their .grad (in the order of
/// registration), and `gradient`, which names a gradient stored elsewhere. If
/// all of these are finite, the text names the loss itself.
std::string first_not_finite(const std::vector<c10::IValue>& inputs,
                             const c10::IValue& target,
                             const ModuleHandle& module,
                             const std::string& gradient = "");

/// Limits the norm of the gradients as torch::nn::utils::clip_grad_norm_()
/// does, and writes it to `result`. If the norm is not finite, `result` says so
/// and the gradients are left unchanged.
void clip_grad_norm(const std::vector<torch::Tensor>& parameters,
                    const ModuleHandle& module, double max_norm,
                    StepResult& result);

/// Returns whether this rank reports a loss that is not finite, which is the
/// first rank that has a shard with such a loss.
bool reports_loss(const ReplicaGroup& group, const StepTotals& totals);

/// Warns about the first step of `group` that is not finite, if this rank
/// `reports` it. An overflow under TrainStepOptions::loss_scale is expected and
/// is not reported.
void warn_not_finite(ReplicaGroup& group, const TrainStepOptions& options,
                     const StepResult& result, bool reports);

}  // namespace lockstep
