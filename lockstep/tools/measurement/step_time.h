#pragma once

#include <string>
#include <vector>

#include "lockstep/tools/comparison/comparison.h"
#include "lockstep/tools/measurement/timed_run.h"

namespace lockstep::tools {

/// Trains with one strategy on a fixed synthetic batch and times each step.
/// This is what one process of `compare` does. `run` names the model, the
/// strategy, the devices and the ranks. Each rank of its world calls this
/// function with its own part of the batch. The result is complete on rank 0.
Measurement measure_steps(const TimedRun& run);

/// Does the same as measure_steps() for a user's loop: kDpLoop or
/// kDpLoopUnfused if the strategy of `run` is dp, and kDdpLoop or
/// kDdpLoopUnfused if it is ddp.
Measurement measure_own_loop(const TimedRun& run);

/// Returns the strategies of `train` and own_loops().
std::vector<std::string> compared_strategies();

}  // namespace lockstep::tools
