#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/torch.h>

#include "lockstep/shm/call.h"

namespace lockstep {

/// Whether calls are compared in every detail: LOCKSTEP_DEBUG=detail.
bool is_debug_detail();

/// What a rank calls, for the others to compare with their own; in debug
/// detail with the tensor's shape.
shm::Call call_of(shm::Operation operation, const at::Tensor& tensor,
                  int root = -1, const c10d::ReduceOp* op = nullptr);

/// The factor of a premul sum.
double factor_of(const c10d::ReduceOp& op);
/// `tensor` times that factor.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace lockstep
