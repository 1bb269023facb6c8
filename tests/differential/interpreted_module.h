#pragma once

#include <memory>
#include <vector>

#include <torch/torch.h>

#include "tests/differential/case.h"

namespace lockstep::differential {

torch::Dtype dtype_of(const std::string& name);

/// Where the module of a case registers its `part`-th group of parameters.
struct PartImpl : torch::nn::Cloneable<PartImpl> {
  PartImpl(std::shared_ptr<const Case> of, int number);
  void reset() override;

  std::shared_ptr<const Case> definition;
  int part;
  std::vector<torch::Tensor> tensors;  ///< undefined: not of this part
};

/// The module that a case describes: forward() runs its nodes in order.
struct InterpretedModule : torch::nn::Cloneable<InterpretedModule> {
  explicit InterpretedModule(std::shared_ptr<const Case> of);
  void reset() override;

  /// Takes and returns tensors nested as the case says.
  c10::IValue forward(const c10::IValue& inputs);

  /// Parameter `p` of the case.
  torch::Tensor parameter(int64_t p) const;
  /// Each parameter once, in the order of named_parameters().
  std::vector<torch::Tensor> unique_parameters() const;

  std::shared_ptr<const Case> definition;
  std::vector<std::shared_ptr<PartImpl>> parts;
  std::vector<torch::Tensor> tensors;
  std::vector<torch::nn::BatchNorm1d> norms;
  std::vector<torch::Tensor> trackers;
};

/// `leaves` nested as `nesting` says, and back.
c10::IValue nest(const std::vector<torch::Tensor>& leaves,
                 const std::string& nesting, const std::vector<bool>& is_none);
std::vector<torch::Tensor> leaves_of(const c10::IValue& nested);

}  // namespace lockstep::differential
