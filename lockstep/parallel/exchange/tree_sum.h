#pragma once

#include <vector>

#include <torch/types.h>

#include "lockstep/comm/world.h"

namespace lockstep {

/// Who adds up what the ranks have. The order is that of the tree of
/// left_branch() (base/chunk.h) both ways, so the bits are the same.
enum class TreeSum {
  /// The world's own all-reduce and reduce-scatter, whose order is that tree.
  kByWorld,
  /// Each rank the pieces that an all-to-all brings it. For NCCL, which adds in
  /// the order of its rings. It sends as many bytes.
  kByPieces,
};

/// kByPieces where the world's order is another. A sum of two has one order.
TreeSum tree_sum_of(const World& world);

/// Sums `elements`, 1-d and without gaps, over the ranks, in place. Collective.
void tree_all_reduce(const World& world, torch::Tensor elements, TreeSum way);
/// `own` gets the sum of the `pieces[rank]` of all ranks; it may be that piece.
/// All pieces are of one size. Collective.
void tree_reduce_scatter(const World& world, torch::Tensor own,
                         const std::vector<torch::Tensor>& pieces, TreeSum way);
/// The sum is in `elements` on `root`; elsewhere they are as they were, or
/// anything. Collective.
void tree_reduce(const World& world, torch::Tensor elements, int root,
                 TreeSum way);

}  // namespace lockstep
