#pragma once

#include <cstddef>
#include <filesystem>
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

/// The cores of share `index` of `count`: equal parts of `cores`, in order, so
/// that every share has as many threads as the others. 3 cores in 2 shares
/// leave one core idle. With more shares than cores, each has one core, in
/// turns.
std::vector<int> core_share(const std::vector<int>& cores, size_t index,
                            size_t count);

/// How many cores' worth of CPU time the control groups of this process allow
/// (1.5: three halves of a core); infinity where nothing limits it. Reads
/// cgroup v2 and v1, the process's own group and those around it. `root` is
/// where /proc and /sys are found: a test brings its own.
double cgroup_cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep
