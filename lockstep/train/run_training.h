#pragma once

#include <functional>

#include "lockstep/train/options.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

/// Trains `task` and returns the report. With kDistributed, every rank calls it
/// with the same options. Rank 0 writes and prints, and has the complete
/// report. `stop` is polled between steps. It returns the number of the signal
/// for which to stop, or 0. If one rank stops, all ranks stop.
///
/// Throws TrainError if the loss is not finite (naming the step and the place
/// where this was first seen), and whatever the data, the devices and the model
/// throw.
RunReport run_training(Task& task, const TrainOptions& options,
                       const std::function<int()>& stop = {});

}  // namespace lockstep::train
