#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// By name, as optimizers have their state.
using OptimizerState = std::map<std::string, torch::Tensor>;

/// The state of a run, to go on from: on the disk or in memory.
class SavedState {
 public:
  virtual ~SavedState() = default;

  /// Copies parameters and buffers into `module`, a state dict. Throws
  /// CheckpointError naming what does not fit; nothing is changed then.
  virtual void load(const NamedTensors& module) const = 0;
  /// The optimizer's state. `like` is the state of the optimizer that is to get
  /// it. Throws CheckpointError.
  virtual OptimizerState optimizer_state(const OptimizerState& like) const = 0;
  /// States of random number generators, by name.
  virtual OptimizerState random_state() const = 0;

  void load(const torch::nn::Module& module) const { load(state_dict(module)); }
  void load(optim::Optimizer& optimizer) const {
    optimizer.load_state_dict(optimizer_state(optimizer.state_dict()));
  }
};

}  // namespace lockstep
