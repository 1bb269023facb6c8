#pragma once

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::training {

/// Interface to a part of a run whose state is in its checkpoints.
class Stateful {
 public:
  virtual ~Stateful() = default;

  /// Returns the state by name. Names and shapes are the same at every step,
  /// except that a callback may make state in a step.
  virtual OptimizerState state() const = 0;
  /// Loads what state() returned.
  virtual void load_state(const OptimizerState& state) = 0;
};

}  // namespace lockstep::training
