#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/collectives/collectives.h"

namespace lockstep {

/// Throws InvalidArgument unless sparse_all_reduce() takes `tensor` and `op`:
/// `tensor` must be sparse (COO) and on the host, and `op` a sum, or an average
/// of a type that can be divided.
void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// Computes the sum, or average, of the ranks' sparse tensors in place,
/// coalesced. The tensors have the same shape and any number of elements. The
/// elements of all ranks are gathered, and each rank sums them along the tree
/// of tree_reduce.h, half and bfloat16 in float32. This gives the same bits on
/// every rank.
///
/// Throws CommError if the shapes of the ranks differ.
void sparse_all_reduce(Collectives& collectives, const at::Tensor& tensor,
                       const c10d::ReduceOp& op, int size,
                       Collectives::Timeout timeout);

}  // namespace lockstep
