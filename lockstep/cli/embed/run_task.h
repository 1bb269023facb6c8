#pragma once

#include <functional>
#include <string>

#include "lockstep/cli/embed/run_options.h"
#include "lockstep/train/run_report.h"

namespace lockstep::cli {

/// Trains with the options that it gets; polls `stop` as run_training() does.
using TrainFunction = std::function<train::RunReport(
    const train::TrainOptions& options, const std::function<int()>& stop)>;

/// Calls `train` as the command line says: in this process, or in a process for
/// each device, which it starts, or as a rank that a launcher started.
/// `beginning` is what the first line says of it. A run that was stopped, and
/// processes that were started, end in CLI::RuntimeError with the exit code.
void run_task(const RunFlags& flags, const std::string& beginning,
              const TrainFunction& train);

}  // namespace lockstep::cli
