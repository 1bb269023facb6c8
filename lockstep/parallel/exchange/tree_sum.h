#pragma once

#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Ways to compute the tree sum. Both follow the tree of left_branch()
/// (base/chunk.h), so the bits are the same.
enum class TreeSum {
  /// By the group's own all-reduce and reduce-scatter, which follow that tree.
  kByGroup,
  /// By each rank, for the pieces that it gets in an all-to-all. Used for NCCL,
  /// which adds in the order of its rings, and for half and bfloat16, which our
  /// transports add in float32 and round once, while the tree rounds each sum.
  /// Sends as many bytes.
  kByPieces,
};

/// Returns the way that has the bits of the tree for elements of `type`. A sum
/// of two has only one order and is rounded once.
TreeSum tree_sum_of(const ProcessGroup& world, at::ScalarType type);

/// Sums `elements`, 1-d and without gaps, over the ranks, in place. Collective.
void tree_all_reduce(const ProcessGroup& world, torch::Tensor elements,
                     TreeSum way);
/// Writes the sum of `pieces[rank]` of all ranks to `own`, which may be that
/// piece. All pieces have the same size. Collective.
void tree_reduce_scatter(const ProcessGroup& world, torch::Tensor own,
                         const std::vector<torch::Tensor>& pieces, TreeSum way);
/// Writes the sum to `elements` on rank `root`. On other ranks, the contents of
/// `elements` are unspecified afterwards. Collective.
void tree_reduce(const ProcessGroup& world, torch::Tensor elements, int root,
                 TreeSum way);

}  // namespace lockstep
