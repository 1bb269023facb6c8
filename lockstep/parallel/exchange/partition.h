#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/byte_range.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

/// The parts of a parameter, in the order of its memory: a piece for each rank,
/// then the rest.
struct ParameterCut {
  bool is_cut = false;  ///< false: all of it belongs to every rank
  int64_t piece = 0;    ///< elements of each rank's piece
  int64_t rest = 0;     ///< elements after the pieces
  int root = 0;         ///< rank that owns the rest
};

/// Cuts the parameters over `ranks` ranks.
///
/// A large parameter (is_large()) is cut. All pieces have the same number of
/// blocks (kBlockElements). The rest, which has fewer blocks than there are
/// ranks, belongs to the rank that has the fewest bytes of rests so far. Unless
/// the parameter is on the CPU, all of it is that rest. A small parameter
/// belongs to every rank: each makes the same update, which costs little
/// memory.
std::vector<ParameterCut> cut_parameters(
    const std::vector<torch::Tensor>& parameters, int ranks);

/// Determines which rank updates which elements of the parameters when the
/// optimizer's state is partitioned over the ranks (ZeRO: Rajbhandari et al.,
/// 2020, arXiv 1910.02054). They are cut by cut_parameters().
///
/// reduce_scatter() brings the sums of gradients to their owners, and
/// all_gather() brings updated parameters to all ranks. Together they send as
/// many bytes as an all-reduce of all gradients.
class Partition {
 public:
  Partition(const ProcessGroup& world,
            const std::vector<torch::Tensor>& parameters);

  bool is_cut(size_t p) const { return cuts_[p].is_cut; }
  /// Returns whether this rank updates the block of parameter `p` that starts
  /// at element `offset`.
  bool owns(size_t p, int64_t offset) const;
  /// Returns the byte ranges of `p` that belong to this rank, in order.
  std::vector<ByteRange> own_bytes(size_t p) const;
  /// Returns zeros laid out like `parameter`, which is parameter `p`. Only this
  /// rank's own elements take memory. reserved_number() of the result is `p`.
  torch::Tensor zeros(size_t p, const torch::Tensor& parameter) const;

  /// Sums `elements` over the ranks. They are 1-d and laid out like the
  /// parameter's memory. Afterwards this rank's own elements hold the sum, and
  /// the other elements are unspecified. `p` must be cut. Collective.
  void reduce_scatter(size_t p, const torch::Tensor& elements) const;
  /// Copies this rank's own elements of parameter `p` from `elements` to `to`,
  /// which is laid out like the parameter.
  void copy_own(size_t p, const torch::Tensor& elements,
                const torch::Tensor& to) const;
  /// Gives every rank all `elements`, of which each rank has its own part.
  /// Collective.
  void all_gather(size_t p, const torch::Tensor& elements) const;

 private:
  std::vector<torch::Tensor> pieces_of(const ParameterCut& cut,
                                       const torch::Tensor& elements) const;
  torch::Tensor rest_of(const ParameterCut& cut,
                        const torch::Tensor& elements) const;

  ProcessGroup world_;
  std::vector<ParameterCut> cuts_;
  std::vector<int64_t> element_bytes_;
};

}  // namespace lockstep
