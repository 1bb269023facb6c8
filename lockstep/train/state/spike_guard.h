#pragma once

#include <deque>

#include "lockstep/train/state/stateful.h"
#include "lockstep/train/train_options.h"

namespace lockstep::training {

/// Decides whether the loss of a step is a spike: above the mean of the last
/// losses by several of their standard deviations, as in OLMo's
/// SkipStepOptimizer. Nothing is a spike before half of the window is known.
///
/// The loss of a spike is added like any other. A loss that stays high is
/// therefore soon no longer a spike, and the run continues in any case.
class SpikeGuard : public Stateful {
 public:
  explicit SpikeGuard(const SpikeOptions& options) : options_(options) {}

  const SpikeOptions& options() const { return options_; }
  /// Returns the loss above which a step is a spike.
  double limit() const;
  /// Adds the loss of a step. Called after each step.
  void add(double loss);
  /// Forgets the previous losses, since the weights are different now.
  void restart() { losses_.clear(); }

  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 private:
  SpikeOptions options_;
  std::deque<double> losses_;  // the newest are last
};

}  // namespace lockstep::training
