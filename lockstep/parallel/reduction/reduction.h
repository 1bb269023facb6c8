#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

/// The sum of the gradients of shards [first, last). Has one tensor for each
/// parameter, laid out like it, undefined where no shard had a gradient.
struct PartialSum {
  int64_t first = 0;
  int64_t last = 0;
  std::vector<OwnedGradient> gradients;
};

/// Returns whether [first, last) is a node of the tree that sums shards
/// 0..shards-1.
///
/// The tree is that of left_branch() (base/chunk.h), which every reduction in
/// Lockstep follows.
bool is_tree_node(int64_t first, int64_t last, int64_t shards);

/// Appends `next`, the sum of the shards right after the last partial sum, and
/// merges neighbours while they make up a node of the tree. A worker calls it
/// after each of its shards, so it holds at most log2(shards) gradients.
void append_partial(std::vector<PartialSum>& partials, PartialSum next,
                    int64_t shards);

/// Returns the partial sums of all workers, in the order of their shards.
std::vector<PartialSum> join_partials(
    std::vector<std::vector<PartialSum>> per_worker);

/// Merges all of `partials` into one, from the last to the first. Neighbours
/// need not make up a node of the tree, so the bits of the result depend on how
/// the shards are divided.
void merge_partials(std::vector<PartialSum>& partials);

/// Returns the sum of one gradient of each shard along the tree. The result is
/// undefined if all of them are undefined.
OwnedGradient sum_over_shards(std::vector<OwnedGradient> per_shard);

/// Sums partial sums that cover shards 0..shards-1 in order.
///
/// On CPU the work is left to block() and take(). Threads can then share it,
/// and a block can be updated while it is in the cache. On other devices the
/// constructor does the work.
class Reduction {
 public:
  /// `parameters` gives the layout and the type of the sums. Gradients on
  /// another device (another GPU) are first moved to the parameters' device. On
  /// CPU, gradients of float parameters may also be *narrow* (half or
  /// bfloat16). They are summed in float.
  Reduction(std::vector<PartialSum> partials, int64_t shards,
            std::span<const torch::Tensor> parameters);

  /// Returns whether any shard had a gradient for parameter `p`.
  bool has_gradient(size_t p) const { return has_gradient_[p]; }

  /// Returns the sum of `block` as a 1-d tensor: in `scratch` (of
  /// kBlockElements), or in memory that take() returns if `scratch` is
  /// undefined. The result is undefined if no shard had a gradient. May be
  /// called once for each block, by any thread.
  torch::Tensor block(const optim::Block& block, torch::Tensor& scratch);

  /// Returns whether a shard's gradient of parameter `p` is narrow.
  bool is_narrow(size_t p) const { return is_narrow_[p]; }
  /// Returns whether any gradient is narrow.
  bool has_narrow() const {
    return std::find(is_narrow_.begin(), is_narrow_.end(), true) !=
           is_narrow_.end();
  }

  /// Allocates memory for the sums of narrow gradients. Must be called before
  /// block() is called without scratch.
  void prepare_take();
  /// Returns the sums, one tensor for each parameter, undefined where there is
  /// no gradient. Must be called after block() was called, without scratch, for
  /// all blocks.
  std::vector<torch::Tensor> take();
  bool has_merges() const { return !merges_.empty(); }

 private:
  /// Copies the gradients of slices over the links to the first slice. Called
  /// only if there are special links. Otherwise the first slice reads the
  /// gradients in place.
  void bring_together(std::span<const torch::Tensor> parameters);

  std::vector<PartialSum> partials_;
  // Pairs (left, right): left += right, in this order. Entry 0 holds the final
  // sum.
  std::vector<std::pair<size_t, size_t>> merges_;
  std::vector<bool> has_gradient_;
  std::vector<bool> is_narrow_;
  std::vector<at::ScalarType> types_;     // types of the parameters
  std::vector<torch::Tensor> wide_sums_;  // sums of narrow gradients
};

}  // namespace lockstep
