#pragma once

#include <vector>

namespace lockstep {

/// The cores this process may use, in order: its affinity mask when it
/// started, cut to the whole cores that its cgroup's CPU quota pays for.
const std::vector<int>& allowed_cores();
/// Pins the calling thread. Throws IoError naming the cores.
void pin_thread(const std::vector<int>& cores);

}  // namespace lockstep
