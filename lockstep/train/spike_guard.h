#pragma once

#include <cstdint>
#include <deque>

#include "lockstep/checkpoint/saved_state.h"
#include "lockstep/train/spike_options.h"

namespace lockstep::train {

/// Tells whether the loss of a step is a spike: above the mean of the last
/// losses by several of their standard deviations, as OLMo's SkipStepOptimizer
/// tells it. Before half of the window is known, nothing is a spike.
///
/// A spike's loss counts like any other, so a loss that stays high is none
/// soon: the run goes on in any case.
class SpikeGuard {
 public:
  explicit SpikeGuard(const SpikeOptions& options) : options_(options) {}

  const SpikeOptions& options() const { return options_; }
  /// A loss above it is a spike.
  double limit() const;
  /// After each step.
  void add(double loss);
  /// What came before is forgotten: the weights are others.
  void restart() { losses_.clear(); }

  OptimizerState state() const;
  void load_state(const OptimizerState& state);

 private:
  SpikeOptions options_;
  std::deque<double> losses_;  // the newest are last
};

}  // namespace lockstep::train
