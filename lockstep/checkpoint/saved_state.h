#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// The state of an optimizer, by name.
using OptimizerState = std::map<std::string, torch::Tensor>;

/// Interface to the saved state of a run, on disk or in memory.
class SavedState {
 public:
  virtual ~SavedState() = default;

  /// Copies parameters and buffers into `module`, a state dict. If something
  /// does not fit, throws CheckpointError naming it, and nothing is changed.
  virtual void load(const NamedTensors& module) const = 0;
  /// Returns the optimizer's state. `like` is the state of the optimizer that
  /// it is for. Throws CheckpointError.
  virtual OptimizerState optimizer_state(const OptimizerState& like) const = 0;
  /// Returns the states of random number generators, by name.
  virtual OptimizerState random_state() const = 0;

  void load(const torch::nn::Module& module) const { load(state_dict(module)); }
  void load(optim::Optimizer& optimizer) const {
    optimizer.load_state_dict(optimizer_state(optimizer.state_dict()));
  }
};

}  // namespace lockstep
