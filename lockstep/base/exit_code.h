#pragma once

#include <exception>

// Exit codes of programs that train, for schedulers and scripts.
namespace lockstep {

inline constexpr int kExitDone = 0;
/// Something failed, and may succeed if it is tried again: a file, a device,
/// the connection to another rank.
inline constexpr int kExitFailed = 1;
/// An option or an argument can't be used.
inline constexpr int kExitBadUsage = 2;
/// Training can't go on: TrainError, and with it ParallelError. sysexits.h
/// calls the number EX_SOFTWARE.
inline constexpr int kExitTrainingFailed = 70;
/// A scheduler's signal ended the run, and it has saved what it needs to go on:
/// run the same command again. sysexits.h calls the number EX_TEMPFAIL.
inline constexpr int kExitPreempted = 75;
/// A signal ended the process: this plus its number, as shells have it.
inline constexpr int kExitSignal = 128;

/// Returns the exit code of a program that `error` ends: kExitBadUsage for
/// InvalidArgument, kExitTrainingFailed for TrainError and for a ReplicaError
/// that one caused, kExitFailed for all else.
int exit_code_of(const std::exception& error);

}  // namespace lockstep
