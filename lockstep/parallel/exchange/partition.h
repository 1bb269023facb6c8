#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/world.h"
#include "lockstep/device/byte_range.h"
#include "lockstep/parallel/exchange/tree_sum.h"

namespace lockstep {

/// Which rank updates which elements of the parameters, where the optimizer's
/// state is cut over the ranks (ZeRO: Rajbhandari et al., 2020, arXiv
/// 1910.02054).
///
/// A large parameter (is_large()) is cut, in the order of its
/// memory, into one piece for each rank, all of the same number of blocks
/// (kBlockElements). The rest, fewer blocks than there are ranks, is one
/// rank's, a different one from parameter to parameter. A small parameter is
/// every rank's: each updates it alike, and what that costs in memory is
/// little.
///
/// Sums of gradients come to their owners by reduce_scatter(), and updated
/// parameters to everybody by all_gather(): together that sends as many bytes
/// as the all-reduce of all gradients.
class Partition {
 public:
  Partition(const World& world, std::vector<torch::Tensor> parameters);

  bool is_cut(size_t p) const { return cuts_[p].is_cut; }
  /// Whether this rank updates the block of parameter `p` from element
  /// `offset` on.
  bool owns(size_t p, int64_t offset) const;
  /// The bytes of `p` that are this rank's, in their order.
  std::vector<ByteRange> own_bytes(size_t p) const;
  /// Zeros laid out like `parameter`, which is `p`, of which only this rank's
  /// own elements take memory; reserved_number() is `p`.
  torch::Tensor zeros(size_t p, const torch::Tensor& parameter) const;

  /// Sums `elements` over the ranks, which are laid out as the parameter's
  /// memory, 1-d: afterwards this rank's own elements hold the sum and the
  /// others anything. `p` is cut. Collective.
  void reduce_scatter(size_t p, const torch::Tensor& elements) const;
  /// Gives every rank all `elements`, of which each has its own. Collective.
  void all_gather(size_t p, const torch::Tensor& elements) const;

 private:
  struct Cut {
    bool is_cut = false;
    int64_t piece = 0;  // elements of each rank's
    int64_t rest = 0;   // elements behind the pieces
    int root = 0;       // whose the rest is
  };

  std::vector<torch::Tensor> pieces_of(const Cut& cut,
                                       const torch::Tensor& elements) const;
  torch::Tensor rest_of(const Cut& cut, const torch::Tensor& elements) const;

  World world_;
  TreeSum tree_sum_;
  std::vector<Cut> cuts_;
  std::vector<int64_t> element_bytes_;
};

}  // namespace lockstep
