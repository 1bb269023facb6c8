#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/options/run_options.h"

namespace lockstep::launch {

/// Starts this node's workers, each running `command` (a program and its
/// arguments), and stays until all of the job have ended: `lockstep run` as a
/// function. Returns the exit code: 0, 1 if a worker failed, 128 and the
/// signal's number if a signal ended the job, or kExitPreempted if the workers
/// then said that they can go on later.
///
/// To be called from the main thread, before it has started others: signals
/// are blocked meanwhile, and children of the process that it does not know
/// are ended with the workers. Throws LaunchError, CommError, InvalidArgument
/// or IoError if the job can't start.
int run(const RunOptions& options, const std::vector<std::string>& command);

}  // namespace lockstep::launch
