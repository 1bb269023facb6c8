#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace lockstep {

/// Throws InvalidArgument unless sparse_all_reduce() takes `tensor` and `op`:
/// `tensor` must be sparse (COO) and on the host, and `op` a sum, or an average
/// of a type that can be divided.
void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// An all_gather of dense tensors: writes the inputs of all ranks to `outputs`.
using GatherTensors = c10::function_ref<void(
    const std::vector<at::Tensor>& outputs, const at::Tensor& input)>;

/// Computes the sum, or average, of the ranks' sparse tensors in place,
/// coalesced. The tensors have the same shape and any number of elements. The
/// elements of all ranks are gathered by `all_gather`, and each rank sums them
/// along the tree of tree_reduce.h, half and bfloat16 in float32. This gives
/// the same bits on every rank.
///
/// Throws CommError if the shapes of the ranks differ.
void sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                       int size, GatherTensors all_gather);

}  // namespace lockstep
