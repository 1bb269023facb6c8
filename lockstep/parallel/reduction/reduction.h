#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

/// The gradients of shards [first, last), summed. One tensor for each
/// parameter, laid out like it; undefined where no shard had a gradient.
struct PartialSum {
  int64_t first = 0;
  int64_t last = 0;
  std::vector<OwnedGradient> gradients;
};

/// Whether [first, last) is a node of the tree that sums shards 0..shards-1.
///
/// The tree is that of left_branch() (base/chunk.h), which every reduction in
/// Lockstep follows.
bool is_tree_node(int64_t first, int64_t last, int64_t shards);

/// Appends `next`, the sum of the shards right after the last partial sum, and
/// merges neighbours while they make up a node of the tree. A worker calls it
/// after each of its shards, so it holds log2(shards) gradients at most.
void append_partial(std::vector<PartialSum>& partials, PartialSum next,
                    int64_t shards);

/// The partial sums of all workers, in the order of their shards.
std::vector<PartialSum> join_partials(
    std::vector<std::vector<PartialSum>> of_workers);

/// The sum of `partials`, from the last to the first: of neighbours that need
/// not make up a node of the tree, so its bits depend on how they are cut.
PartialSum sum_partials(std::vector<PartialSum> partials);

/// Returns the sum of one gradient of each shard along the tree. It is
/// undefined if all of them are.
OwnedGradient sum_over_shards(std::vector<OwnedGradient> of_shards);

/// Sums partial sums that cover shards 0..shards-1 in order.
///
/// On CPU the work is left to block() and finish(), so that threads can share
/// it and an update can follow while a block is in the cache; elsewhere the
/// constructor does it.
class Reduction {
 public:
  /// `parameters` gives the layout. Gradients elsewhere (another GPU) are
  /// first brought to the parameters' device.
  Reduction(std::vector<PartialSum> partials, int64_t shards,
            std::span<const torch::Tensor> parameters);

  /// Whether any shard had a gradient for parameter `p`.
  bool has_gradient(size_t p) const { return has_gradient_[p]; }
  const std::vector<bool>& has_gradient() const { return has_gradient_; }

  /// The sum's block, as a 1-d tensor: in `scratch` (of kBlockElements), or in
  /// a partial sum's memory if `scratch` is undefined. Undefined if no
  /// shard had a gradient. May be called once for a block, by any thread.
  torch::Tensor block(const optim::Block& block, torch::Tensor& scratch);

  /// After block() was called, without scratch, for all blocks: the sums, one
  /// tensor for each parameter, undefined where there is none.
  std::vector<torch::Tensor> take();
  bool has_merges() const { return !merges_.empty(); }

 private:
  /// Gradients of slices go over the links to the first one, which otherwise
  /// reads them where they are.
  void bring_together(std::span<const torch::Tensor> parameters);

  std::vector<PartialSum> partials_;
  // Pairs (left, right): left += right, in this order; 0 is the sum at last.
  std::vector<std::pair<size_t, size_t>> merges_;
  std::vector<bool> has_gradient_;
};

}  // namespace lockstep
