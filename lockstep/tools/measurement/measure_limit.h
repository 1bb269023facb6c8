#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/tools/comparison/step_limit.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::tools {

/// Facts about the timed steps that the measurement of a limit needs.
struct LimitedSteps {
  double median_s = 0;     ///< of the timed steps, on rank 0
  int64_t timed = 0;       ///< number of timed steps
  int64_t parameters = 0;  ///< elements
  /// Values that the optimizer keeps for each parameter: 1 for momentum, 2 for
  /// AdamW.
  int64_t states = 1;
};

/// Measures the limit of the steps that `step` makes, on the devices of all
/// ranks. Makes a few more steps, in which it records the operators, and then
/// runs their matrix products and convolutions without the rest: with the
/// threads of the plan, on all devices at the same time. Takes about as long as
/// a third of the timed steps.
///
/// The ranks' traces must not be recorded at the moment. Returns nothing on
/// accelerators, because their kernels end later than their operators.
/// Collective. The result is complete on rank 0.
std::optional<StepLimit> measure_limit(const ProcessGroup& world,
                                       const training::Plan& plan,
                                       const LimitedSteps& steps,
                                       const std::function<void()>& step);

}  // namespace lockstep::tools
