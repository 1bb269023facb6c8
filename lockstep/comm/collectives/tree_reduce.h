#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/shm/collectives.h"

namespace lockstep {

/// How elements of `type` of several ranks are reduced: along the balanced
/// binary tree of shards (a node of n > 1 ranks splits at the largest power of
/// two below n), half and bfloat16 in float32 and rounded once, NaN kept by min
/// and max as torch.minimum keeps it. A sum of bools is their or. Integers wrap
/// around.
///
/// Throws InvalidArgument for a reduction that has no meaning, such as the min
/// of complex numbers or the band of floating ones. A premul sum has
/// combine_scaled() where the type is a real floating one of 16 bits or more;
/// the caller puts in the rank's factor.
shm::Reduction tree_reduction(at::ScalarType type,
                              c10d::ReduceOp::RedOpType op);

/// "sum", "avg", ...
const char* name_of(c10d::ReduceOp::RedOpType op);

/// The factor of a premul sum. Throws CommError if `op` has no factor.
double factor_of(const c10d::ReduceOp& op);
/// `tensor` times that factor.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace lockstep
