#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include "tests/differential/case.h"

namespace lockstep::differential {

torch::Dtype dtype_of(const std::string& name);

/// Submodule in which the module of a case registers its `part`-th group of
/// parameters.
struct PartImpl : torch::nn::Cloneable<PartImpl> {
  PartImpl(std::shared_ptr<const Case> of, int number);
  void reset() override;

  std::shared_ptr<const Case> definition;
  int part;
  std::vector<torch::Tensor> tensors;  ///< undefined: not of this part
};

/// The module that a case describes: forward() runs its nodes in order. It may
/// break a rule (Case::flaw):
///
///   late_layer        registers a submodule in its first forward
///   late_parameter    registers a parameter of its own then
///   other_reset       reset() sets a member to another value than it has
///   other_parameters  reset() of a copy registers another parameter
///   counts_forwards   multiplies its output by the number of its forwards, and
///                     adds it
///   own_random        has random numbers of its own
///
/// Tying parameters by assignment breaks one as well, without a name here.
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
  /// The first output is multiplied by it.
  double factor = 1;

 private:
  /// Returns the first output as the flaw changes it.
  torch::Tensor change(const torch::Tensor& output);

  bool is_made_ = false;  // the constructor is through, and it may be copied
  int64_t forwards_ = 0;
  /// The parameter that the first forward registers.
  torch::Tensor make_late(const torch::TensorOptions& options);

  torch::Tensor late_;
};

/// `leaves` nested as `nesting` says, and back.
c10::IValue nest(const std::vector<torch::Tensor>& leaves,
                 const std::string& nesting, const std::vector<bool>& is_none);
std::vector<torch::Tensor> leaves_of(const c10::IValue& nested);

}  // namespace lockstep::differential
