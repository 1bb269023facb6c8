#pragma once

#include <exception>

// Exit codes of programs that train, for schedulers and scripts.
namespace lockstep {

inline constexpr int kExitDone = 0;
/// A failure that may not occur again on another try: a file, a device, or the
/// connection to another rank failed.
inline constexpr int kExitFailed = 1;
/// An option or an argument can't be used.
inline constexpr int kExitBadUsage = 2;
/// Training can't go on: TrainError, which includes ParallelError. sysexits.h
/// calls the number EX_SOFTWARE.
inline constexpr int kExitTrainingFailed = 70;
/// A scheduler's signal ended the run, which saved a checkpoint first, or the
/// job lost a node or its network. Run the same command again to resume.
/// sysexits.h calls the number EX_TEMPFAIL.
inline constexpr int kExitPreempted = 75;
/// Added to the number of the signal that ended the process, as shells do.
inline constexpr int kExitSignal = 128;

/// Returns the exit code of a program that `error` ends: kExitBadUsage for
/// InvalidArgument, kExitTrainingFailed for TrainError and for an error that a
/// TrainError caused (such as ReplicaError), kExitFailed for all others.
int exit_code_of(const std::exception& error);

}  // namespace lockstep
