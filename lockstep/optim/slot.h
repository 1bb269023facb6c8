#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/placement.h"

namespace lockstep::optim {

/// A function that makes zeros for the state of a parameter, with its layout.
using StateFactory = std::function<torch::Tensor(const torch::Tensor&)>;

/// One kind of state, such as momentum: zeros at first, with the type and the
/// layout of the parameters.
class Slot {
 public:
  /// Allocates the state on the devices of `placement`. `make` may be empty.
  Slot(std::string name, const StateFactory& make,
       const std::vector<torch::Tensor>& parameters,
       const Placement& placement);
  /// Returns this state on the devices of another placement of the same blocks.
  Slot moved_to(const Placement& placement) const;

  const std::string& name() const { return name_; }
  /// Returns the state of parameter `p`. The result is undefined if its blocks
  /// have memory of their own.
  const torch::Tensor& tensor(size_t p) const { return tensors_[p]; }
  /// Returns the elements of a block as a 1-d tensor on the block's device.
  const torch::Tensor& view(size_t block) const { return views_[block]; }
  /// Returns tensor(p), or a copy in the memory of the host, laid out like
  /// `parameter`.
  torch::Tensor whole(size_t p, const torch::Tensor& parameter,
                      const Placement& placement) const;
  /// Copies `values` to the state of parameter `p`. Undefined: zeros.
  void load(size_t p, const torch::Tensor& values,
            const torch::Tensor& parameter, const Placement& placement);

 private:
  std::string name_;
  std::vector<torch::Tensor> tensors_;  // by parameter
  std::vector<torch::Tensor> views_;    // by block
};

}  // namespace lockstep::optim
