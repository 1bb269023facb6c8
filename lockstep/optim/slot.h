#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/placement.h"

namespace lockstep::optim {

/// A function that makes zeros for the state of a parameter, with its layout.
using StateFactory = std::function<torch::Tensor(const torch::Tensor&)>;

/// One kind of state, such as momentum: zeros at first, laid out like the
/// parameters. All functions but the constructor and is_allocated() need
/// allocated state.
class Slot {
 public:
  Slot(std::string name, StateFactory make)
      : name_(std::move(name)), make_(std::move(make)) {}

  const std::string& name() const { return name_; }
  bool is_allocated() const { return is_allocated_; }
  /// Allocates the state on the devices of `placement`. Does nothing if that
  /// throws, or if the state is allocated.
  void allocate(const std::vector<torch::Tensor>& parameters,
                const Placement& placement);
  /// Returns this state on the devices of another placement of the same blocks.
  Slot moved_to(const Placement& placement) const;

  /// Returns the state of parameter `p`. The result is undefined if its blocks
  /// have memory of their own.
  const torch::Tensor& tensor(size_t p) const { return tensors_[p]; }
  /// Returns the elements of a block as a 1-d tensor on the block's device.
  const torch::Tensor& view(size_t block) const { return views_[block]; }
  at::ScalarType type_of(size_t p) const { return types_[p]; }
  /// Returns tensor(p), or a copy in the memory of the host, laid out like
  /// `parameter`.
  torch::Tensor whole(size_t p, const torch::Tensor& parameter,
                      const Placement& placement) const;
  /// Copies `values` to the state of parameter `p`.
  void load(size_t p, const torch::Tensor& values,
            const torch::Tensor& parameter, const Placement& placement);

 private:
  std::string name_;
  StateFactory make_;
  bool is_allocated_ = false;
  std::vector<torch::Tensor> tensors_;  // by parameter
  std::vector<torch::Tensor> views_;    // by block
  std::vector<at::ScalarType> types_;   // by parameter
};

}  // namespace lockstep::optim
