#pragma once

#include <vector>

namespace lockstep {

/// The cores this process may use, in order: its affinity mask when it
/// started, cut to the whole cores that its cgroup's CPU quota pays for. In a
/// worker that `lockstep run` pinned to its part of them: those of the agent,
/// of which the worker's device is a slice.
const std::vector<int>& allowed_cores();
/// How the agent tells its worker: "0,1,2".
inline constexpr const char* kCoresVariable = "LOCKSTEP_CORES";
/// Pins the calling thread. Throws IoError naming the cores.
void pin_thread(const std::vector<int>& cores);
/// Lets the calling thread run on every allowed core: a new one has those of
/// the thread that made it, which may be pinned to a slice. Where this is
/// forbidden, nothing changes.
void leave_slice();

}  // namespace lockstep
