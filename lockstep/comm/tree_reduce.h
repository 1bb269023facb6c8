#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/shm/collectives.h"

namespace lockstep {

/// Returns the reduction of elements of `type` of several ranks. It follows the
/// balanced binary tree of shards: a node of n > 1 ranks splits at the largest
/// power of two below n. Half and bfloat16 are computed in float32 and rounded
/// once. Min and max keep NaN, as torch.minimum does. A sum of bools is their
/// logical or. Integers wrap around.
///
/// Throws InvalidArgument for a meaningless reduction, such as the min of
/// complex numbers or the band of floating-point numbers. A premul sum has
/// combine_scaled() if the type is a real floating-point type of 16 bits or
/// more. The caller sets the rank's factor.
transport::Reduction tree_reduction(at::ScalarType type,
                                    c10d::ReduceOp::RedOpType op);

/// Returns "sum", "avg", ...
const char* name_of(c10d::ReduceOp::RedOpType op);

/// Returns the factor of a premul sum. Throws CommError if `op` has no factor.
double factor_of(const c10d::ReduceOp& op);
/// Returns `tensor` times that factor.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace lockstep
