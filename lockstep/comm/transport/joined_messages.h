#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/transport/collective.h"

namespace lockstep {

/// Returns the collectives of a group, to be performed in the order given.
/// Consecutive all-reduces of small tensors of one type and reduction are
/// joined into messages, as join_small() says, if their tensors share no
/// memory. The bits are the same as with one all-reduce for each tensor.
std::vector<Collective> join_all_reduces(
    const std::vector<Collective>& collectives, size_t small_bytes);

/// Appends to `joined` the all-reduces of `tensors`, which have one type and
/// share no memory. Small ones are joined into messages, as join_small() says.
void append_joined(const std::vector<at::Tensor>& tensors,
                   const c10d::ReduceOp& op, size_t small_bytes,
                   std::vector<Collective>& joined);

/// Returns whether two of the tensors may share memory. A tensor's memory
/// counts as everything from its first element to its last.
bool may_overlap(const std::vector<at::Tensor>& tensors);

/// Returns which of the tensors, all of one type, are sent in one message. Each
/// list of the result holds the indices of a message's tensors, in order.
/// Tensors of up to `small_bytes` are joined into messages of up to 4 MiB. A
/// larger tensor is a separate message. The result depends only on the sizes,
/// so all ranks join the same tensors.
std::vector<std::vector<size_t>> join_small(
    const std::vector<at::Tensor>& tensors, size_t small_bytes);

}  // namespace lockstep
