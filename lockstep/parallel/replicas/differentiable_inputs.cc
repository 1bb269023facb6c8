#include "lockstep/parallel/replicas/differentiable_inputs.h"

#include "lockstep/device/links/device_copy.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

DifferentiableInputs::DifferentiableInputs(const IValue& batch,
                                           bool needs_graph) {
  for_each_tensor(batch, [&](const Tensor& tensor, const std::string&) {
    requires_grad_.push_back(needs_graph && tensor.requires_grad());
    if (requires_grad_.back()) tensors_.push_back(tensor);
  });
}

IValue DifferentiableInputs::cut_from_graph(const IValue& part,
                                            std::vector<Tensor>& leaves) const {
  size_t at = 0;
  return map_tensors(part, [&](const Tensor& chunk) {
    const bool is_leaf = requires_grad_[at++];
    // With a version counter of its own: a shard that writes to its chunk does
    // not touch what another one has saved.
    Tensor leaf = chunk.is_inference() ? chunk.detach() : chunk.variable_data();
    if (!is_leaf) return leaf;
    leaves.push_back(leaf.requires_grad_());
    return leaves.back();
  });
}

void DifferentiableInputs::pass_on_writes(const IValue& part,
                                          const IValue& cut) {
  std::vector<Tensor> chunks;
  for_each_tensor(part, [&](const Tensor& chunk, const std::string&) {
    chunks.push_back(chunk);
  });
  size_t at = 0;
  for_each_tensor(cut, [&](const Tensor& leaf, const std::string&) {
    const Tensor& chunk = chunks[at++];
    if (leaf.is_inference() || leaf._version() == 0) return;
    if (leaf.is_alias_of(chunk)) torch::autograd::impl::bump_version(chunk);
  });
}

std::vector<Tensor> DifferentiableInputs::gather(
    const std::vector<std::vector<Tensor>>& gradients,
    const std::vector<std::vector<Tensor>>& leaves, int64_t dim) const {
  torch::NoGradGuard no_grad;
  std::vector<Tensor> gathered(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
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
