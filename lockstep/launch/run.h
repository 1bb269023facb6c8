#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/options/run_options.h"

namespace lockstep::launch {

/// Starts this node's workers, each running `command` (a program and its
/// arguments), and returns when the whole job has ended: `lockstep run` as a
/// function. Returns the exit code: 0, 1 if a worker failed,
/// kExitTrainingFailed or kExitBadUsage if the root cause ended with that code,
/// 128 plus the signal's number if a signal ended the job, or kExitPreempted if
/// the workers then reported that the job can be resumed, or if the job lost a
/// node or its network. In an elastic job, a node that was cut off joins again.
///
/// Call it from the main thread, before other threads are started. Signals are
/// blocked until it returns, and child processes that it did not start are
/// killed together with the workers. Throws LaunchError, CommError,
/// InvalidArgument or IoError if the job can't start.
int run(const RunOptions& options, const std::vector<std::string>& command);

}  // namespace lockstep::launch
