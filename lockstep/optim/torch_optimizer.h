#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The update of a torch::optim::SGD, Adam or AdamW, cut in blocks: with its
/// parameter groups, their options as they are at each step, and its state,
/// which stays the torch optimizer's own (to save and load, say) but lies in
/// memory that `make_state` gives.
class TorchOptimizer : public Optimizer {
 public:
  /// Null for an optimizer of another type (of a class that derives from one of
  /// these, too, as it may have another step()), and for parameters that are
  /// not dense and of a floating type.
  static std::unique_ptr<TorchOptimizer> adopt(
      torch::optim::Optimizer& optimizer, const StateFactory& make_state);

  /// Whether it was made for an optimizer that was, or is, at this place.
  bool is_at(const torch::optim::Optimizer& optimizer) const {
    return &optimizer == &optimizer_;
  }
  /// Whether `optimizer` has the parameters that this was made for, in the same
  /// groups.
  bool is_for(const torch::optim::Optimizer& optimizer) const;
  /// Before a step: reads the groups' options, and takes state that was loaded
  /// or replaced since.
  virtual void follow() = 0;
  /// Gives the torch optimizer state in memory of its own, so that its step()
  /// can be called on each rank. The next follow() takes it back.
  virtual void release_state() = 0;

 protected:
  TorchOptimizer(torch::optim::Optimizer& optimizer,
                 const StateFactory& make_state);

  /// A tensor of state for each parameter, and its blocks.
  struct Slot {
    std::vector<torch::Tensor> tensors;
    std::vector<torch::Tensor> views;
    bool is_made() const { return !tensors.empty(); }
  };
  void make(Slot& slot);
  /// Makes `state`, a tensor of the torch optimizer's state, the slot's for
  /// parameter `p`, with the values that it has; with zeros if it is undefined.
  static void take(Slot& slot, size_t p, torch::Tensor& state);
  /// A copy of `state` if it is the slot's tensor for `p`; else itself.
  static torch::Tensor released(const Slot& slot, size_t p,
                                const torch::Tensor& state);
  const torch::Tensor& view(const Slot& slot, size_t block) const;
  size_t group_of(size_t p) const { return group_of_[p]; }
  size_t parameter_of(size_t block) const {
    return static_cast<size_t>(blocks_[block].tensor);
  }
  /// The torch optimizer's state of parameter `p`; made if there is none.
  template <typename State>
  State& state_of(size_t p) const;

  torch::optim::Optimizer& optimizer_;

 private:
  StateFactory make_state_;
  std::vector<size_t> group_of_;  // by parameter
};

/// The parameters of all groups of `optimizer`, in their order.
std::vector<torch::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
