#pragma once

#include <filesystem>

namespace lockstep {

/// How many cores' worth of CPU time the control groups of this process allow
/// (1.5: three halves of a core); infinity where nothing limits it. Reads
/// cgroup v2 and v1, the process's own group and those around it. `root` is
/// where /proc and /sys are found: a test brings its own.
double cgroup_cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep
