#pragma once

#include <string>
#include <vector>

#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/measurement/timed_run.h"

namespace lockstep::report {

/// How many steps are measured, after how many that are not.
struct TimedSteps {
  int64_t steps = 30;
  int64_t warmup = 5;
};

/// Trains with one strategy on a fixed synthetic batch and times each step:
/// what one process of `compare` does. `run` says which model, strategy,
/// devices and ranks; each rank of its world calls it, with its own part of
/// the batch. The result is complete on rank 0, which also writes a Chrome
/// trace of the last steps to `trace` unless that is empty.
Measurement measure_steps(const TimedRun& run, const TimedSteps& timed,
                          const std::string& trace);

/// As measure_steps(), for kDpLoop if the strategy of `run` is dp, and for
/// kDdpLoop if it is ddp.
Measurement measure_own_loop(const TimedRun& run, const TimedSteps& timed,
                             const std::string& trace);

/// Returns the strategies of `train`, kDpLoop and kDdpLoop.
std::vector<std::string> compared_strategies();
/// The models of images, and the language model of the reference workloads.
std::vector<std::string> compared_models();

}  // namespace lockstep::report
