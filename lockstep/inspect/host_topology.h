#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// The slices of this host, by what their cores share: the nearest cache or
/// NUMA node that holds the cores of both.
Topology host_topology(std::span<const Device> slices);

/// The same of slices with these cores (in order) on a host that hwloc makes
/// up, as its tools do: "numa:2 l3:1 core:4 pu:2". For tests. Throws
/// InvalidArgument for a description that hwloc can't read.
Topology synthetic_topology(const std::string& description,
                            const std::vector<std::vector<int>>& cores);

}  // namespace lockstep::inspect
