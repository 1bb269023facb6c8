#pragma once

namespace lockstep {

/// A scheduler's signal ended the run, and what it needs to go on is saved: run
/// the same command again. sysexits.h calls it EX_TEMPFAIL.
inline constexpr int kExitPreempted = 75;

/// A signal ended the process: plus its number, as shells have it.
inline constexpr int kExitSignal = 128;

}  // namespace lockstep
