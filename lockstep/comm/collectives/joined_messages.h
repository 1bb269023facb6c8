#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/collectives/collectives.h"

namespace lockstep {

/// Whether two of the tensors may share memory. Takes a tensor's memory for
/// all from its first element to its last.
bool may_overlap(const std::vector<at::Tensor>& tensors);

/// Which of the tensors, all of one type, are to be sent in one message: lists
/// of their numbers, in order. Those of up to `small_bytes` are joined; larger
/// ones are alone, and no message is larger than 4 MiB. Depends on the sizes
/// alone, so that all ranks join the same.
std::vector<std::vector<size_t>> join_small(
    const std::vector<at::Tensor>& tensors, size_t small_bytes);

/// All-reduces of dense tensors of one type that share no memory, in as few
/// messages as pays; with the bits of one all-reduce for each.
void all_reduce_joined(Collectives& collectives,
                       const std::vector<at::Tensor>& tensors,
                       const c10d::ReduceOp& op, Collectives::Timeout timeout);

}  // namespace lockstep
