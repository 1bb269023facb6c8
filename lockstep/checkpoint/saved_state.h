#pragma once

#include <map>
#include <string>

#include <torch/torch.h>

#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// The state of a run, to go on from: on the disk or in memory.
class SavedState {
 public:
  virtual ~SavedState() = default;

  /// Parameters and buffers. Throws CheckpointError naming what does not fit;
  /// the model is then as it was.
  virtual void load(models::Model& model) const = 0;
  /// The optimizer's state. Throws likewise.
  virtual void load(optim::Optimizer& optimizer) const = 0;
  /// States of random number generators, by name.
  virtual std::map<std::string, torch::Tensor> random_state() const = 0;
};

}  // namespace lockstep
