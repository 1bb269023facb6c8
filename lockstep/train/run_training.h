#pragma once

#include <functional>

#include "lockstep/train/options.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// Trains `task` and returns the report; with kDistributed every rank calls it
/// with the same options, rank 0 writes, prints and has the whole report.
/// Throws TrainError when the loss is not finite (naming the step and where it
/// was first seen), and whatever the data, devices and model throw. `stop` is
/// polled between steps: the number of the signal for which to stop, or 0; one
/// rank's stop is every rank's.
RunReport run_training(Task& task, const TrainOptions& options,
                       const std::function<int()>& stop = {});

}  // namespace lockstep::train
