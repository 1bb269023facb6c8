#pragma once

#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Returns the tensors of all ranks, concatenated along dimension 0 in the
/// order of the ranks. Gradients flow back to each rank's `tensor`: it gets the
/// sum over the ranks of the gradients of its part, as with
/// torch.distributed.nn.functional.all_gather.
///
/// Use it for a loss that compares the samples of a batch with each other. Each
/// rank computes the loss of the whole batch from the result:
///
///     auto z = lockstep::all_gather_with_grad(group, model->forward(x));
///     auto loss = info_nce(z, lockstep::all_gather_with_grad(group, views));
///     loss.backward();
///
/// DistributedDataParallel averages the gradients over the ranks, which gives
/// the gradients of the loss of the whole batch.
///
/// Both the call and its backward are collective: each rank must call both, in
/// the same order. `tensor` must have the same type and shape on all ranks, and
/// must require grad on all of them or on none. Otherwise each rank throws
/// ParallelError. In a group of one rank, returns `tensor`.
torch::Tensor all_gather_with_grad(const ProcessGroup& group,
                                   const torch::Tensor& tensor);

}  // namespace lockstep
