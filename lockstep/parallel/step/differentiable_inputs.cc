#include "lockstep/parallel/step/differentiable_inputs.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/aligned_tensor.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

DifferentiableInputs::DifferentiableInputs(const IValue& batch,
                                           bool needs_graph) {
  for (const auto& [tensor, path, is_shared] : tensors_in(batch)) {
    entries_.push_back({.requires_grad = needs_graph && tensor.requires_grad(),
                        .is_shared = is_shared,
                        .path = path});
    if (!entries_.back().requires_grad) continue;
    tensors_.push_back(tensor);
    are_shared_.push_back(is_shared);
  }
}

void DifferentiableInputs::check_none_is_shared() const {
  if (std::find(are_shared_.begin(), are_shared_.end(), true) ==
      are_shared_.end()) {
    return;
  }
  throw ParallelError(
      "ddp", {.code = ErrorCode::kUnsupportedGraph,
              .what = "a shared() tensor of the batch requires grad, and each "
                      "rank would compute its own gradient of it",
              .expected = "a tensor without a graph",
              .fix = "register it as a parameter of the module, or detach it"});
}

IValue DifferentiableInputs::cut_from_graph(const IValue& part,
                                            std::vector<Tensor>& leaves) const {
  size_t at = 0;
  return map_tensors(part, [&](const Tensor& chunk) {
    const bool is_leaf = entries_[at++].requires_grad;
    accelerator::record_use(chunk);  // made in the caller's stream
    // The leaf has its own version counter: if a shard writes to its chunk,
    // that does not affect tensors that another shard has saved.
    Tensor leaf = chunk.is_inference() ? chunk.detach() : chunk.variable_data();
    leaf = aligned(leaf);
    if (!is_leaf) return leaf;
    leaves.push_back(leaf.requires_grad_());
    return leaves.back();
  });
}

IValue DifferentiableInputs::with_other_samples(const IValue& part,
                                                int64_t dim) const {
  size_t at = 0;
  return map_tensors(part, [&](const Tensor& chunk) {
    if (entries_[at++].is_shared) return chunk;
    const int64_t samples = chunk.size(dim);
    const Tensor numbers = torch::arange(
        samples, torch::dtype(torch::kLong).device(chunk.device()));
    return chunk.detach().index_select(dim,
                                       numbers.div(2, "floor") + samples / 2);
  });
}

void DifferentiableInputs::pass_on_writes(const IValue& part, const IValue& cut,
                                          int64_t shards) const {
  const std::vector<TensorAtPath> chunks = tensors_in(part);
  const std::vector<TensorAtPath> leaves = tensors_in(cut);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Entry& entry = entries_[i];
    const Tensor& chunk = chunks[i].tensor;
    const Tensor& leaf = leaves[i].tensor;
    if (leaf.is_inference() || leaf._version() == 0) continue;
    if (entry.is_shared && shards > 1) {
      throw ParallelError(
          "parallel",
          {.code = ErrorCode::kBadBatch,
           .what = fmt::format("a forward wrote to input{}, which is shared by "
                               "{} shards, which compute at once",
                               entry.path, shards),
           .expected = "a forward that only reads what is shared()",
           .fix = "clone the tensor in forward(), or write to it between "
                  "steps"});
    }
    if (!leaf.is_alias_of(chunk)) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      chunk.copy_(leaf.detach());
    }
    torch::autograd::impl::bump_version(chunk);
  }
}

std::vector<Tensor> DifferentiableInputs::gather(
    const std::vector<std::vector<Tensor>>& gradients,
    const std::vector<std::vector<Tensor>>& leaves, int64_t dim) const {
  torch::NoGradGuard no_grad;
  std::vector<Tensor> gathered(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (are_shared_[i]) {
      std::vector<OwnedGradient> per_shard;
      for (const auto& shard_values : gradients) {
        const Tensor& gradient = shard_values[i];
        per_shard.push_back(OwnedGradient::take(
            gradient.defined() ? to_device(gradient, place_of(tensors_[i]))
                               : gradient,
            tensors_[i]));
      }
      gathered[i] = sum_over_shards(std::move(per_shard)).release();
      continue;
    }
    bool has_any = false;
    std::vector<Tensor> chunks;
    for (size_t s = 0; s < gradients.size(); ++s) {
      const Tensor& gradient = gradients[s][i];
      has_any = has_any || gradient.defined();
      chunks.push_back(to_device(
          gradient.defined() ? gradient : torch::zeros_like(leaves[s][i]),
          place_of(tensors_[i])));
    }
    if (has_any) gathered[i] = torch::cat(chunks, dim);
  }
  return gathered;
}

}  // namespace lockstep
