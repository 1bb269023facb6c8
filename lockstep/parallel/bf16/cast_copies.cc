#include "lockstep/parallel/bf16/cast_copies.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "lockstep/device/bfloat16_loops.h"
#include "lockstep/device/tensor_checksum.h"

namespace lockstep {

using torch::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

void CastCopies::make(const std::vector<Tensor>& parameters,
                      const std::vector<bool>& is_cast,
                      const Allocate& allocate) {
  reset();
  if (std::find(is_cast.begin(), is_cast.end(), true) == is_cast.end()) return;
  copies_.resize(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!is_cast[p]) continue;
    // Its memory is never written, so it takes none.
    copies_[p] = allocate(
        torch::empty_like(parameters[p].detach(), torch::dtype(kType)));
  }
}

CastCopies::Seal CastCopies::seal_of(const Tensor& parameter) {
  return {.data = parameter.const_data_ptr(),
          .version = parameter._version(),
          .sample = sample_of(parameter)};
}

bool CastCopies::are_outdated(const std::vector<Tensor>& parameters) const {
  if (!is_valid_) return true;
  for (size_t p = 0; p < copies_.size(); ++p) {
    if (copies_[p].defined() && seal_of(parameters[p]) != seals_[p]) {
      return true;
    }
  }
  return false;
}

bool CastCopies::fit(const std::vector<Tensor>& parameters) const {
  if (copies_.size() != parameters.size()) return false;
  for (size_t p = 0; p < copies_.size(); ++p) {
    if (!copies_[p].defined()) continue;
    if (parameters[p].scalar_type() != at::kFloat ||
        parameters[p].sizes() != copies_[p].sizes() ||
        parameters[p].strides() != copies_[p].strides()) {
      return false;
    }
  }
  return true;
}

void CastCopies::note_written(const std::vector<Tensor>& parameters,
                              const std::vector<bool>& is_written) {
  seals_.resize(copies_.size());
  for (size_t p = 0; p < copies_.size(); ++p) {
    if (!is_written[p] || !copies_[p].defined()) continue;
    seals_[p] = seal_of(parameters[p]);
  }
  is_valid_ = true;
}

void CastCopies::write(const Tensor& parameter, size_t p, int64_t offset,
                       int64_t length) const {
  if (!copies_[p].defined()) return;
  narrow(parameter.const_data_ptr<float>() + offset,
         copies_[p].mutable_data_ptr<c10::BFloat16>() + offset, length);
}

bool CastCopies::is_current(const Tensor& parameter, size_t p, int64_t offset,
                            int64_t length) const {
  return !copies_[p].defined() ||
         is_narrowed(parameter.const_data_ptr<float>() + offset,
                     copies_[p].const_data_ptr<c10::BFloat16>() + offset,
                     length);
}

namespace {

/// Returns whether `node` is the cast of a tensor to the type of the copies.
bool is_cast_node(const Node& node) {
  return node.num_inputs() == 1 && node.name() == "ToCopyBackward0" &&
         node.input_metadata(0).options().dtype() == CastCopies::kType;
}

/// Returns whether `node` is a view of all elements of a tensor, each once.
bool is_view_of_all(const Node& node) {
  constexpr std::array kViews{"TBackward0",         "TransposeBackward0",
                              "TransposeBackward1", "PermuteBackward0",
                              "ViewBackward0",      "UnsqueezeBackward0",
                              "AliasBackward0"};
  return std::find(kViews.begin(), kViews.end(), node.name()) != kViews.end();
}

/// Uses of the value that a node of the graph computed.
struct Uses {
  int count = 0;
  const Node* by = nullptr;  // one of the users
};

}  // namespace

std::vector<bool> are_cast_once(const std::vector<Tensor>& roots,
                                const std::vector<Tensor>& leaves) {
  std::unordered_map<const Node*, Uses> uses;
  std::unordered_map<const void*, const Node*> node_of;  // by leaf
  std::vector<const Node*> stack;
  for (const Tensor& root : roots) {
    if (root.grad_fn()) stack.push_back(root.grad_fn().get());
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node)) {
      node_of[leaf->variable.unsafeGetTensorImpl()] = node;
    }
    for (const auto& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      Uses& input_uses = uses[edge.function.get()];
      if (input_uses.count == 0) stack.push_back(edge.function.get());
      input_uses = {.count = input_uses.count + 1, .by = node};
    }
  }
  std::vector<bool> cast_once;
  for (const Tensor& leaf : leaves) {
    const Node* node = node_of[leaf.unsafeGetTensorImpl()];
    bool is_cast = false;
    // LibTorch's functional::linear() casts the transposed weight.
    while (node && !is_cast) {
      const Uses& node_uses = uses[node];
      const bool is_view =
          node_uses.count == 1 && is_view_of_all(*node_uses.by);
      is_cast = node_uses.count == 1 && is_cast_node(*node_uses.by);
      node = is_view ? node_uses.by : nullptr;
    }
    cast_once.push_back(leaf.scalar_type() == at::kFloat && is_cast);
  }
  return cast_once;
}

}  // namespace lockstep
