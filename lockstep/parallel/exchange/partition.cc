#include "lockstep/parallel/exchange/partition.h"

#include <algorithm>

#include "lockstep/device/reserved_memory.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/exchange/tree_sum.h"

namespace lockstep {

using torch::Tensor;

std::vector<ParameterCut> cut_parameters(const std::vector<Tensor>& parameters,
                                         int ranks) {
  std::vector<ParameterCut> cuts;
  // Bytes of the rests that each rank owns so far.
  std::vector<int64_t> rest_bytes(static_cast<size_t>(ranks));
  for (const Tensor& parameter : parameters) {
    ParameterCut cut{.is_cut = is_large(parameter)};
    // On a GPU, a whole parameter belongs to one rank.
    const int64_t blocks =
        parameter.is_cpu() ? parameter.numel() / optim::kBlockElements / ranks
                           : 0;
    cut.piece = blocks * optim::kBlockElements;
    cut.rest = parameter.numel() - cut.piece * ranks;
    if (cut.is_cut) {
      const auto least = std::min_element(rest_bytes.begin(), rest_bytes.end());
      cut.root = static_cast<int>(least - rest_bytes.begin());
      *least += cut.rest * static_cast<int64_t>(parameter.element_size());
    }
    cuts.push_back(cut);
  }
  return cuts;
}

Partition::Partition(const ProcessGroup& world,
                     const std::vector<Tensor>& parameters)
    : world_(world), cuts_(cut_parameters(parameters, world.size())) {
  for (const Tensor& parameter : parameters) {
    element_bytes_.push_back(static_cast<int64_t>(parameter.element_size()));
  }
}

bool Partition::owns(size_t p, int64_t offset) const {
  const ParameterCut& cut = cuts_[p];
  if (!cut.is_cut) return true;
  const int64_t in_pieces = cut.piece * world_.size();
  if (offset >= in_pieces) return cut.root == world_.rank();
  return offset / cut.piece == world_.rank();
}

std::vector<ByteRange> Partition::own_bytes(size_t p) const {
  const ParameterCut& cut = cuts_[p];
  const int64_t size = element_bytes_[p];
  const int64_t in_pieces = cut.piece * world_.size();
  if (!cut.is_cut) return {{.begin = 0, .end = (in_pieces + cut.rest) * size}};
  std::vector<ByteRange> own;
  if (cut.piece > 0) {
    const int64_t begin = cut.piece * world_.rank();
    own.push_back({.begin = begin * size, .end = (begin + cut.piece) * size});
  }
  if (cut.rest > 0 && cut.root == world_.rank()) {
    own.push_back(
        {.begin = in_pieces * size, .end = (in_pieces + cut.rest) * size});
  }
  return own;
}

Tensor Partition::zeros(size_t p, const Tensor& parameter) const {
  return reserved_like(parameter.detach(), own_bytes(p),
                       static_cast<int64_t>(p));
}

std::vector<Tensor> Partition::pieces_of(const ParameterCut& cut,
                                         const Tensor& elements) const {
  std::vector<Tensor> pieces;
  for (int rank = 0; rank < world_.size(); ++rank) {
    pieces.push_back(elements.narrow(0, cut.piece * rank, cut.piece));
  }
  return pieces;
}

Tensor Partition::rest_of(const ParameterCut& cut,
                          const Tensor& elements) const {
  return elements.narrow(0, cut.piece * world_.size(), cut.rest);
}

void Partition::reduce_scatter(size_t p, const Tensor& elements) const {
  const torch::NoGradGuard no_grad;
  const ParameterCut& cut = cuts_[p];
  const TreeSum way = tree_sum_of(world_, elements.scalar_type());
  if (cut.piece > 0) {
    const std::vector<Tensor> pieces = pieces_of(cut, elements);
    const Tensor own = pieces[static_cast<size_t>(world_.rank())];
    tree_reduce_scatter(world_, own, pieces, way);
  }
  if (cut.rest > 0) {
    tree_reduce(world_, rest_of(cut, elements), cut.root, way);
  }
}

void Partition::copy_own(size_t p, const Tensor& elements,
                         const Tensor& to) const {
  for (const ByteRange& own : own_bytes(p)) {
    const int64_t begin = own.begin / element_bytes_[p];
    const int64_t count = (own.end - own.begin) / element_bytes_[p];
    optim::memory_view(to, begin, count)
        .copy_(elements.narrow(0, begin, count));
  }
}

void Partition::all_gather(size_t p, const Tensor& elements) const {
  const torch::NoGradGuard no_grad;
  const ParameterCut& cut = cuts_[p];
  if (cut.piece > 0) {
    std::vector<Tensor> pieces = pieces_of(cut, elements);
    const Tensor own = pieces[static_cast<size_t>(world_.rank())];
    world_.all_gather(pieces, own);
  }
  if (cut.rest > 0) {
    Tensor rest = rest_of(cut, elements);
    world_.broadcast(rest, cut.root);
  }
}

}  // namespace lockstep
