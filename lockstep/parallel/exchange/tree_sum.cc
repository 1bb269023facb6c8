#include "lockstep/parallel/exchange/tree_sum.h"

#include <span>

#include "lockstep/base/chunk.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Returns the sum, in the memory of the first tensor.
const Tensor& sum_along_tree(std::span<const Tensor> per_rank) {
  if (per_rank.size() == 1) return per_rank[0];
  const auto left =
      static_cast<size_t>(left_branch(static_cast<int64_t>(per_rank.size())));
  const Tensor& sum = sum_along_tree(per_rank.first(left));
  sum.add_(sum_along_tree(per_rank.subspan(left)));
  return sum;
}

/// Returns the sum of `pieces[rank]` of all ranks. Pieces may differ in size.
Tensor own_sum(const ProcessGroup& world, const std::vector<Tensor>& pieces) {
  const Tensor& own = pieces[static_cast<size_t>(world.rank())];
  std::vector<Tensor> per_rank;
  for (int rank = 0; rank < world.size(); ++rank) {
    per_rank.push_back(torch::empty_like(own));
  }
  world.all_to_all(per_rank, pieces);
  return sum_along_tree(per_rank);
}

}  // namespace

TreeSum tree_sum_of(const ProcessGroup& world, at::ScalarType type) {
  const bool is_narrow = type == torch::kHalf || type == torch::kBFloat16;
  const bool is_of_tree = world.sums_along_tree() && !is_narrow;
  return is_of_tree || world.size() == 2 ? TreeSum::kByGroup
                                         : TreeSum::kByPieces;
}

void tree_all_reduce(const ProcessGroup& world, Tensor elements, TreeSum way) {
  const torch::NoGradGuard no_grad;
  if (way == TreeSum::kByGroup) {
    world.all_reduce(elements);
    return;
  }
  std::vector<Tensor> pieces = elements.tensor_split(world.size());
  const Tensor own = own_sum(world, pieces);
  world.all_to_all(pieces,
                   std::vector<Tensor>(static_cast<size_t>(world.size()), own));
}

void tree_reduce_scatter(const ProcessGroup& world, Tensor own,
                         const std::vector<Tensor>& pieces, TreeSum way) {
  const torch::NoGradGuard no_grad;
  if (way == TreeSum::kByGroup) {
    world.reduce_scatter(own, pieces);
    return;
  }
  own.copy_(own_sum(world, pieces));
}

void tree_reduce(const ProcessGroup& world, Tensor elements, int root,
                 TreeSum way) {
  const torch::NoGradGuard no_grad;
  if (way == TreeSum::kByGroup) {
    world.reduce(elements, root);
    return;
  }
  const std::vector<Tensor> per_rank = world.gather(elements, root).result();
  if (world.rank() == root) elements.copy_(sum_along_tree(per_rank));
}

}  // namespace lockstep
