#pragma once

#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The operators that a TorchOptimizer updates with.
enum class UpdateKernels {
  kFused,  ///< ATen's fused kernels, as Lockstep's own optimizers use
  kTorch,  ///< those that round as the torch optimizer's step() does, in float
           ///< and double
};

/// The update of a torch::optim::SGD, Adam or AdamW, cut into blocks. It uses
/// the parameter groups of the torch optimizer, their options at each step, and
/// its state. The state still belongs to the torch optimizer (to save and load
/// it, for example), but it is in memory from `make_state`.
class TorchOptimizer : public Optimizer {
 public:
  /// Returns null for an optimizer of another type, and for parameters that are
  /// not dense, not of a floating type or listed twice. A derived class counts
  /// as another type, because its step() may differ.
  static std::unique_ptr<TorchOptimizer> adopt(
      torch::optim::Optimizer& optimizer, const StateFactory& make_state);
  /// Throws InvalidArgument for an optimizer of another type.
  static void check_type(const torch::optim::Optimizer& optimizer);
  /// Makes one that rounds as the optimizer's own step() does. Throws
  /// InvalidArgument for an optimizer of another type.
  static std::unique_ptr<TorchOptimizer> make_like_torch(
      torch::optim::Optimizer& optimizer);

  /// Returns whether this was made for an optimizer at the same address. That
  /// optimizer may have been deleted.
  bool is_at(const torch::optim::Optimizer& optimizer) const {
    return &optimizer == &optimizer_;
  }
  /// Returns whether `optimizer` has the type and the parameters that this was
  /// made for, in the same groups.
  bool is_for(const torch::optim::Optimizer& optimizer) const;
  /// Reads the options of the groups, and takes over state that was loaded or
  /// replaced. Must be called before a step.
  virtual void follow() = 0;
  /// Copies the state of the torch optimizer to separate memory, so that its
  /// step() can be called on each rank. The next follow() takes it back.
  virtual void release_state() = 0;
  void partition_state(const std::vector<Device>&) override {}

 protected:
  TorchOptimizer(torch::optim::Optimizer& optimizer,
                 const StateFactory& make_state, UpdateKernels kernels);

  /// Adds state that is allocated, because it goes into the torch optimizer.
  Slot& add_slot(std::string name);
  /// Returns the slot's tensor for parameter `p`, with the values of `state`, a
  /// tensor of the torch optimizer's state. If it is undefined, the values are
  /// zeros.
  torch::Tensor taken(const Slot& slot, size_t p, const torch::Tensor& state);
  /// Returns a copy of `state` if it is the slot's tensor for `p`, and
  /// otherwise `state` itself.
  static torch::Tensor released(const Slot& slot, size_t p,
                                const torch::Tensor& state);
  size_t group_of(size_t p) const { return group_of_[p]; }
  /// Returns the torch optimizer's state of parameter `p`. Creates it if it
  /// does not exist.
  template <typename State>
  State& state_of(size_t p) const;
  /// Same, but returns null if it does not exist.
  template <typename State>
  State* find_state(size_t p) const;

  torch::optim::Optimizer& optimizer_;
  const UpdateKernels kernels_;

 private:
  const std::type_info& type_;  // of the torch optimizer
  StateFactory make_state_;
  std::vector<size_t> group_of_;  // by parameter
};

/// Returns the parameters of all groups of `optimizer`, in order.
std::vector<torch::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
