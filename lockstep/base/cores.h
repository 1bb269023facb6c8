#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

namespace lockstep {

/// Returns the cores that this process may use, in order: its affinity mask at
/// the start, cut to the number of whole cores that the CPU quota of its cgroup
/// allows. In a worker that `lockstep run` pinned to some of its cores, these
/// are the agent's cores, in the order of the workers, and the worker's device
/// is a slice of them.
const std::vector<int>& allowed_cores();
/// Variable in which the agent passes its cores to its workers: "0,1,2".
inline constexpr const char* kCoresVariable = "LOCKSTEP_CORES";
/// Pins the calling thread. Throws IoError naming the cores.
void pin_thread(const std::vector<int>& cores);
/// Lets the calling thread run on every allowed core. A new thread inherits the
/// cores of the thread that started it, which may be pinned to a slice. Does
/// nothing if the system forbids it.
void leave_slice();

/// Returns the cores of share `index` of `count`. The shares are equal parts of
/// `cores`, in order, so that all have the same number of threads: 3 cores in 2
/// shares leave one core idle. If there are more shares than cores, each share
/// gets one core, and shares take the cores in turn.
std::vector<int> core_share(const std::vector<int>& cores, size_t index,
                            size_t count);

/// Returns the CPU time that the control groups of this process allow, in cores
/// (1.5 means one and a half cores), or infinity if there is no limit. Reads
/// cgroup v2 and v1, the process's own group and its parents. `root` is the
/// folder that contains /proc and /sys; tests pass their own.
double cgroup_cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep
